"""`millpond compile`: fills the cache of compiled programs before a server loads a version."""

import argparse
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from serving.base.errors import InvalidConfig, MillpondError, NotFound
from serving.base.name_text import printable
from serving.base.quiet_stderr import quiet_stderr
from serving.config.flag_rows import accelerator, row_counts
from serving.config.op_library_files import installed_op_libraries
from serving.config.server_config import ServerConfig
from serving.core.model_settings import Platform, TablePlace
from serving.data_plane.loads import AheadCompiler, SavedModelLoad
from serving.data_plane.plane import DataPlane, RuntimeOptions, native_module
from serving.data_plane.servables import AcceleratedSignature
from serving.data_plane.status_errors import statuses_as_errors
from serving.loading.accelerator_use import cuda_plugin_path, make_cache_directory
from serving.loading.installed_ops import InstalledOps
from serving.loading.load_checks import missing_ops_message
from serving.loading.topologies import TOPOLOGIES, topology_description

_GRAPH_FILES = ("saved_model.pb", "saved_model.pbtxt")
_UNIMPLEMENTED = 12  # the gRPC status code: no signature of the version can be compiled
WHOLE, SPLIT, CPU = "whole", "split", "CPU"


def run(arguments: Sequence[str]) -> int:
    """Prints what becomes of each signature, and compiles the programs unless --dry-run is given.

    Returns 1 if a directory cannot be read or the cache not be written, or if --platform=pjrt is given and a version
    has no program. Raises MillpondError if nothing can be compiled.
    """
    parsed = make_parser().parse_args(arguments)
    if not parsed.dry_run and not (parsed.accelerator and parsed.cache):
        raise InvalidConfig(
            "a compilation needs --accelerator and --cache; give both, or --dry-run to compile nothing"
        )
    topology = topology_description(parsed.topology) if parsed.topology else ""
    if parsed.cache and not parsed.dry_run:
        make_cache_directory(parsed.cache)
        _check_is_writable(parsed.cache)
    with quiet_stderr():
        plane = native_module()
        compilation = _Compilation(plane, parsed, _open_compiler(plane, parsed, topology))
    results = [_print_result(compilation, path) for path in parsed.directories]
    if len(results) > 1:
        counts = sum(results, Counter[str]())
        print(f"{counts.total()} signatures: " + ", ".join(_counted(counts)))
    if compilation.compiler is not None:
        print(
            f"{compilation.compiler.compiled_count} programs compiled for {compilation.compiler.target}"
        )
    is_refused = parsed.platform == Platform.PJRT.value and any(
        not counts[WHOLE] + counts[SPLIT] for counts in results
    )
    return 1 if is_refused or any(not counts for counts in results) else 0


def _check_is_writable(cache: str) -> None:
    """Raises InvalidConfig before minutes of compilation, if no program could be kept."""
    if not os.access(cache, os.W_OK | os.X_OK):
        raise InvalidConfig(
            f"--cache={cache} cannot be written; run `chmod u+wx {cache}`, or name another directory"
        )


def _counted(counts: Counter[str]) -> Iterator[str]:
    return (f"{counts[place]} {place}" for place in (WHOLE, SPLIT, CPU))


def _open_compiler(
    plane: DataPlane, parsed: argparse.Namespace, topology: str
) -> AheadCompiler | None:
    """Starts TensorFlow, and opens the plugin; None if nothing is to be compiled."""
    with statuses_as_errors(plane.StatusError):
        plane.initialize(RuntimeOptions(intra_op_thread_count=0, inter_op_thread_count=0))
        if parsed.dry_run:
            return None
        _, _, path = parsed.accelerator.partition(":")
        return plane.open_ahead_compiler(
            path or cuda_plugin_path(), topology, ServerConfig.accelerator_memory_fraction
        )


@dataclass(frozen=True)
class _Compilation:
    """The compilation of versions by one compiler, or a look at them without one."""

    plane: DataPlane
    parsed: argparse.Namespace
    compiler: AheadCompiler | None

    def signatures(self, directory: Path) -> Sequence[AcceleratedSignature]:
        """Compiles the version in `directory`. Raises MillpondError."""
        with statuses_as_errors(self.plane.StatusError):
            try:
                return self._compile(directory)
            except _MissingOps as missing:
                ops = InstalledOps(installed_op_libraries)
                with redirect_stdout(StringIO()):  # the log lines about the libraries
                    is_known = ops.load(missing.ops, self.plane.load_op_library)
                if not is_known:
                    raise
            return self._compile(directory)

    def _compile(self, directory: Path) -> Sequence[AcceleratedSignature]:
        load = self.plane.SavedModelLoad("ahead", 1, str(directory), self.parsed.tags)
        try:
            load.read_graph()
            if missing := load.missing_ops():
                raise _MissingOps(missing)
            try:
                return self._compile_signatures(load)
            except self.plane.StatusError as error:
                if error.args[0] != _UNIMPLEMENTED:
                    raise
                return [
                    AcceleratedSignature(name, (), error.args[1], (), ())
                    for name in load.signature_names
                ]
        finally:
            load.discard()

    def _compile_signatures(self, load: SavedModelLoad) -> Sequence[AcceleratedSignature]:
        return load.compile_ahead(
            self.compiler,
            self.parsed.rows,
            self.parsed.cache or "",
            self.parsed.tables,
            self.parsed.platform != Platform.PJRT.value,
        )


class _MissingOps(NotFound):
    """The graph has ops that are not registered in this process."""

    def __init__(self, ops: Sequence[str]) -> None:
        super().__init__(missing_ops_message(ops))
        self.ops = ops


def _print_result(compilation: _Compilation, path: Path) -> Counter[str]:
    """Compiles one directory and prints its signatures. Returns how many run where; nothing after an error."""
    print(printable(f"{path}:"))
    try:
        with quiet_stderr():
            signatures = compilation.signatures(version_directory(path))
    except (MillpondError, OSError) as error:  # a directory may not be ours to read
        print(f"  {printable(str(error))}")
        return Counter()
    for signature in signatures:
        print(f"  {printable(line_of(signature))}", flush=True)
    return Counter(place_of(signature) for signature in signatures)


def place_of(signature: AcceleratedSignature) -> str:
    """The place of a signature: WHOLE or SPLIT on the accelerator, or CPU."""
    if not signature.rows:
        return CPU
    return SPLIT if signature.host_ops or signature.host_tables else WHOLE


def line_of(signature: AcceleratedSignature) -> str:
    """One line about a signature: its name, its place, and its rows or the reason."""
    place = place_of(signature)
    if place == CPU:
        return f"{signature.name}: {place}: {signature.reason}"
    rows = ", ".join(str(count) for count in signature.rows)
    left = ", ".join((*signature.host_ops, *signature.host_tables))
    return f"{signature.name}: {place}: {rows} rows" + (f"; on the CPU: {left}" if left else "")


def version_directory(path: Path) -> Path:
    """The directory of a version: `path`, or the highest version of this base path. Raises NotFound."""
    if _has_graph(path):
        return path
    versions = [child for child in _children(path) if child.name.isdecimal() and _has_graph(child)]
    if not versions:
        raise NotFound(f"{path} has no saved_model.pb, nor has a version below it")
    return max(versions, key=lambda child: int(child.name))


def _has_graph(directory: Path) -> bool:
    return any((directory / name).is_file() for name in _GRAPH_FILES)


def _children(path: Path) -> Sequence[Path]:
    return tuple(path.iterdir()) if path.is_dir() else ()


def _flag(read: Callable[[str], object]) -> Callable[[str], object]:
    """Makes the reader of a server's flag one of argparse, with the same message."""

    def parse(text: str) -> object:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error

    return parse


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="millpond compile",
        description="Compile the signatures of SavedModels for an accelerator, so that a server with "
        "--accelerator_cache_directory=CACHE compiles nothing.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "directories",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="a SavedModel, or the base path of a model: its highest version",
    )
    parser.add_argument(
        "--accelerator",
        type=_flag(accelerator),
        metavar="cuda|pjrt:PLUGIN.so",
        help="the accelerator, as for millpond serve",
    )
    parser.add_argument(
        "--topology",
        metavar="NAME",
        help=f"compile for a GPU that is not in this machine: {', '.join(TOPOLOGIES)}, or a file with its "
        "GpuTargetConfigProto as text (default: the accelerator of this machine)",
    )
    parser.add_argument(
        "--rows",
        type=_flag(row_counts),
        default=ServerConfig.accelerator_rows,
        metavar="ROWS,ROWS",
        help="the server's --accelerator_rows (default "
        f"{','.join(str(count) for count in ServerConfig.accelerator_rows)})",
    )
    parser.add_argument(
        "--cache", metavar="CACHE", help="the server's --accelerator_cache_directory"
    )
    _add_settings(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="compile nothing: print what would run on the accelerator, and why the rest would not",
    )
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--platform",
        choices=(Platform.AUTO.value, Platform.PJRT.value),
        default=Platform.AUTO.value,
        help="the platform of the model's settings (default %(default)s)",
    )
    parser.add_argument(
        "--tables",
        choices=[place.value for place in TablePlace],
        default=TablePlace.AUTO.value,
        help="accelerator_tables of the model's settings (default %(default)s: tables fit the accelerator)",
    )
    parser.add_argument(
        "--tags",
        type=lambda text: tuple(text.split(",")),
        default=ServerConfig.saved_model_tags,
        metavar="TAG,TAG",
        help="the tags of the graph (default serve)",
    )
