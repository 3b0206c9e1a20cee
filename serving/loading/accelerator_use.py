"""The use of an accelerator by the loads of all models."""

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import structlog

from serving.base.errors import FailedPrecondition, InvalidConfig
from serving.core.cancellation import Cancellation
from serving.core.model_settings import TablePlace
from serving.core.servable import ServableId
from serving.data_plane.loads import Accelerator, SavedModelLoad
from serving.data_plane.servables import AcceleratedSignature
from serving.loading.autotuning import Autotuning, Tuning
from serving.loading.compile_runs import CompileRuns, Program
from serving.loading.device_placement import DevicePlacement
from serving.loading.side_choices import SideChoices
from warmup.signature_defs import is_version

_log = structlog.get_logger(__name__)

CUDA = "cuda"
"""The accelerator whose plugin is in a package."""

_CUDA_PACKAGE = "jax_plugins.xla_cuda13"
_CUDA_LIBRARY = "xla_cuda_plugin.so"


def cuda_plugin_path() -> str:
    """The plugin of the installed package jax-cuda13-pjrt. Raises InvalidConfig if it is missing."""
    try:
        spec = find_spec(_CUDA_PACKAGE)
    except ModuleNotFoundError:
        spec = None
    for folder in (spec.submodule_search_locations if spec is not None else None) or ():
        library = Path(folder) / _CUDA_LIBRARY
        if library.is_file():
            return str(library)
    raise InvalidConfig(
        "--accelerator=cuda needs the package jax-cuda13-pjrt: pip install 'millpond[cuda13]', or give the "
        "path of a plugin as --accelerator=pjrt:PLUGIN.so"
    )


def make_cache_directory(directory: str) -> None:
    """Makes the directory of compiled programs, with mode 0700, or checks the one that is there.

    The server runs what lies there. Raises InvalidConfig if anyone else may write to it, or if it lies inside a
    version, whose files would then change.
    """
    # A link in a circle stays as it is here. Path.resolve would raise RuntimeError.
    place = Path(os.path.realpath(directory))
    try:
        for folder in (place, *place.parents):
            if is_version(folder):
                raise InvalidConfig(
                    f"--accelerator_cache_directory={directory} lies inside the version {folder}, whose files do not "
                    "change; name another directory"
                )
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.stat(directory)
    except OSError as error:
        raise InvalidConfig(
            f"--accelerator_cache_directory={directory} cannot be made: {error.strerror}"
        ) from error
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidConfig(
            f"--accelerator_cache_directory={directory} belongs to another user, or others may write to it, and "
            f"the server would run their programs; run `chmod go-w {directory}`, or name another directory"
        )


def make_private_cache() -> str:
    """Makes a directory of compiled programs in the system's directory for temporary files; "" if it cannot be made."""
    try:
        return mkdtemp(prefix="millpond-programs-")
    except OSError as error:
        _log.warning("accelerator_cache_not_made", reason=str(error))
        return ""


@dataclass(frozen=True, kw_only=True)
class AcceleratorNeeds:
    """A model's settings about accelerators. All its versions may take `memory_bytes_max` on each; 0: all.

    If it `is_low`, its runs yield to those of other models. If the accelerator `is_needed`, a version that cannot run
    there is refused. A version gets `replica_count` replicas on the accelerators at these places; 0: on all of them;
    no places: any.
    """

    memory_bytes_max: int
    is_low: bool
    is_needed: bool
    tables: TablePlace
    devices: Sequence[int]
    replica_count: int


@dataclass(frozen=True)
class AppliedPrograms:
    """The sources of a version's programs, and how many programs are not autotuned.

    A program counts once for all accelerators, but in `server_count`, of what the server compiled itself.
    """

    cached_count: int = 0
    process_count: int = 0
    server_count: int = 0
    untuned_count: int = 0

    @property
    def figures(self) -> Mapping[str, int]:
        """The counts, by their names in the record of a swap."""
        return {
            "cached_programs": self.cached_count,
            "process_programs": self.process_count,
            "server_programs": self.server_count,
            "untuned_programs": self.untuned_count,
        }


@dataclass(frozen=True)
class AcceleratorUse:
    """The accelerators, and how signatures are compiled for them."""

    accelerators: Sequence[Accelerator]
    placement: DevicePlacement
    sides: SideChoices
    rows: Sequence[int]
    """The numbers of rows that each signature is compiled for."""

    cache_directory: str
    """Where compiled programs are kept; "": nowhere."""

    is_cache_private: bool = False
    """True if `stop` removes the cache."""

    autotuning: Autotuning | None = None
    """None: programs that come without autotuning stay so."""

    compilation: CompileRuns | None = None
    """None: the server compiles all programs itself."""

    def tuning(self, servable_id: ServableId) -> Tuning | None:
        """The progress of a version's autotuning; None if it has none."""
        return None if self.autotuning is None else self.autotuning.tuning(servable_id)

    def begin_serving(self) -> None:
        """Keeps compilations from delaying requests. On a thread of normal priority."""
        if self.compilation is not None:
            self.compilation.start()
        self.end_autotuning()

    def end_autotuning(self) -> None:
        """Keeps compilations from delaying requests: they take the plugin's first choice of each kernel from now on.

        On a thread of normal priority. Programs that come without autotuning are replaced later.
        """
        for accelerator in self.accelerators:
            accelerator.end_autotuning()
        if self.autotuning is not None and not all(
            accelerator.autotunes for accelerator in self.accelerators
        ):
            self.autotuning.start()

    def stop_autotuning(self, timeout_seconds: float) -> bool:
        """Ends the process of trials. Returns False if its thread still runs."""
        return self.autotuning is None or self.autotuning.stop(timeout_seconds)

    def stop(self) -> None:
        """Removes the programs that belong to this server. Call it when no load runs any more."""
        self.sides.stop()
        if self.is_cache_private:
            rmtree(self.cache_directory, ignore_errors=True)

    def placed(
        self, servable_id: ServableId, load: SavedModelLoad, needs: AcceleratorNeeds
    ) -> AbstractContextManager[Sequence[Accelerator]]:
        """Chooses the accelerators of a version, for `apply` inside the block."""
        return self.placement.place(
            servable_id.name,
            load.restored_bytes + load.kept_bytes,
            allowed=needs.devices,
            replica_count=needs.replica_count,
        )

    def apply(
        self,
        servable_id: ServableId,
        load: SavedModelLoad,
        accelerators: Sequence[Accelerator],
        needs: AcceleratorNeeds,
        *,
        status_error: type[Exception],
        cancellation: Cancellation,
    ) -> AppliedPrograms:
        """Compiles the version for `accelerators`, and logs which signatures run there and why others do not.

        A version that cannot run there stays on the CPU, with a warning.
        A version that finds no memory there stays on the CPU until there is some. If the accelerator is needed, it is
        refused instead: raises FailedPrecondition, or the data plane's error. So is any version that crashes the
        compiler (`CompileRuns.run`).
        """
        try:
            load.draft_programs(
                accelerators,
                self.rows,
                self.cache_directory,
                needs.tables.value,
                needs.memory_bytes_max,
                needs.is_low,
                needs.is_needed,
                self.autotuning is not None,
            )
            count, missing = load.list_programs()
            missing_count = len(missing)
            left = self._compile(servable_id, load, accelerators[0], missing, cancellation)
            del missing  # the programs have their constants
            signatures = load.use_accelerator()
        except status_error as error:
            if needs.is_needed:
                raise
            _warn(servable_id, "", str(error.args[1]))
            return AppliedPrograms()
        for signature in signatures:
            _report(servable_id, signature, [accelerator.name for accelerator in accelerators])
        if needs.is_needed and not any(signature.rows for signature in signatures):
            reasons = "; ".join(f"{signature.name}: {signature.reason}" for signature in signatures)
            raise FailedPrecondition(
                f"{servable_id}: no signature can run on the accelerator, and its model's platform is "
                f'"pjrt" ({reasons}); set platform = "auto", or export a graph that XLA compiles'
            )
        return AppliedPrograms(
            cached_count=count - missing_count,
            process_count=missing_count - left,
            server_count=load.compiled_program_count,
            untuned_count=sum(len(signature.untuned_rows) for signature in signatures),
        )

    def _compile(
        self,
        servable_id: ServableId,
        load: SavedModelLoad,
        accelerator: Accelerator,
        missing: Sequence[tuple[str, bytes]],
        cancellation: Cancellation,
    ) -> int:
        """Has the missing programs compiled by a process, if one may. Returns how many are left to the server.

        They are compiled for one accelerator, and for all others of its sort.
        """
        compilation = self.compilation
        if not missing or compilation is None or not compilation.may_compile(accelerator):
            return len(missing)
        programs = [Program(name, code) for name, code in missing]
        compilation.run(servable_id, accelerator, programs, cancellation)
        _, left = load.list_programs()
        return len(left)


def _report(
    servable_id: ServableId, signature: AcceleratedSignature, devices: Sequence[str]
) -> None:
    if not signature.rows:
        _warn(servable_id, signature.name, signature.reason)
        return
    _log.info(
        "signature_on_accelerator",
        model=servable_id.name,
        version=servable_id.version,
        signature=signature.name,
        rows=list(signature.rows),
        devices=list(devices),
        cpu_ops=list(signature.host_ops),
        cpu_tables=list(signature.host_tables),
    )
    if signature.reason:
        _log.warning(
            "accelerator_full",
            model=servable_id.name,
            version=servable_id.version,
            signature=signature.name,
            reason=signature.reason,
        )


def _warn(servable_id: ServableId, signature: str, reason: str) -> None:
    _log.warning(
        "signature_on_cpu",
        model=servable_id.name,
        version=servable_id.version,
        signature=signature,
        reason=reason,
    )
