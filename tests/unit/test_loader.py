import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from serving.base.clock import SystemClock
from serving.base.errors import (
    Cancelled,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    InvalidConfig,
    MillpondError,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from serving.base.protos import get_model_metadata_pb2
from serving.core.cancellation import Cancellation
from serving.core.model_settings import GateMode, GateSettings, Platform, Priority, TablePlace
from serving.core.servable import LoadStage, ServableId
from serving.data_plane.loads import BatchSettings
from serving.data_plane.servables import AcceleratedSignature, ArenaRemains, Servable, SizeTimes
from serving.loading.accelerator_use import AcceleratorUse
from serving.loading.arenas import Arenas, MemoryLimits
from serving.loading.autotuning import Autotuning, Tuning, TuningState
from serving.loading.batch_records import BatchRecords
from serving.loading.batch_refusals import BatchRefusals
from serving.loading.device_placement import DevicePlacement
from serving.loading.installed_ops import InstalledOps
from serving.loading.load import CheckedLoad
from serving.loading.load_checks import missing_ops_message
from serving.loading.loader import LoadSettings, WarmUp
from serving.loading.program_process import Arguments
from serving.loading.side_choices import SideChoices
from serving.loading.trial_process import TrialRuns
from tests.unit.fakes.children import FakeChild, program_runs
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.data_plane import (
    FakeAccelerator,
    FakeMissingKernel,
    FakePlane,
    FakeSlabPool,
)
from tests.unit.fakes.errors import StatusError
from tests.unit.fakes.loads import FakeProgress
from tests.unit.fakes.requests import FakeReservoir
from tests.unit.fakes.servables import FakeServable
from warmup.self_warm_up import SelfWarmUpResult, self_warm_up

Ask = Callable[[str, bytes], bytes]


def no_warm_up(directory: Path, ask: Ask, cancellation: Cancellation) -> None:
    del directory, ask, cancellation


def self_warm_up_result(first_error: str = "") -> SelfWarmUpResult:
    return SelfWarmUpResult(
        run_count=1, failed_count=0, skipped_count=0, first_error=first_error, seconds=0
    )


def no_self_warm_up(requests: Sequence[bytes], **how: Any) -> SelfWarmUpResult:
    del requests, how
    return self_warm_up_result()


@dataclass(frozen=True)
class Loading:
    """Version 7 of a model in a directory, which can be loaded."""

    directory: Path
    plane: FakePlane
    clock: FakeClock
    settings: LoadSettings

    def load(self, progress: FakeProgress) -> Servable:
        load = CheckedLoad(
            ServableId("m", 7),
            self.directory,
            settings=self.settings,
            plane=self.plane,
            progress=progress,
            clock=self.clock,
        )
        return load.run()


SETTINGS = BatchSettings(
    rows_max=8,
    run_seconds_max=0,
    splits=False,
    allowed_rows=(),
    pads_inputs=False,
    waiting_requests_max=0,
    slots=None,
    relative_tolerance=0,
    may_mix_rows=False,
)


ACCELERATOR = FakeAccelerator()
ACCELERATOR_USE = AcceleratorUse(
    accelerators=[ACCELERATOR],
    placement=DevicePlacement([ACCELERATOR], FakeClock()),
    sides=SideChoices(FakeClock(), StatusError),
    rows=(1, 8),
    cache_directory="/cache",
)


ACCELERATED = AcceleratedSignature(
    name="serving_default",
    rows=(1,),
    reason="",
    host_ops=(),
    host_tables=(),
    sizes=[SizeTimes(1, 554_000, 801_000, is_on_accelerator=True)],
)


def make_loader(
    directory: Path,
    plane: FakePlane,
    clock: FakeClock | None = None,
    warm_up: WarmUp = no_warm_up,
    **settings: Any,
) -> Loading:
    clock = clock or FakeClock()
    defaults: dict[str, Any] = {
        "tags": ("serve", "gpu"),
        "warm_up": warm_up,
        "self_warm_up": no_self_warm_up,
        "incumbent": lambda servable_id: None,
        "follows_another": lambda servable_id: False,
        "batch_records": BatchRecords(),
        "batch_refusals": BatchRefusals(clock),
    }
    return Loading(directory, plane, clock, LoadSettings(**{**defaults, **settings}))


def arenas_of(pool: FakeSlabPool, **limits: int) -> Arenas:
    sizes = MemoryLimits(**{"headroom_bytes": 10, "limit_bytes": 0, **limits})
    return Arenas(pool, sizes, lambda: 1_000_000)


@pytest.fixture
def version(tmp_path: Path) -> Path:
    directory = tmp_path / "7"
    directory.mkdir()
    (directory / "saved_model.pb").write_bytes(b"graph")
    return directory


def test_loader_runs_every_step_in_order(version: Path) -> None:
    plane = FakePlane()
    servable = make_loader(version, plane).load(FakeProgress())
    assert servable is plane.servables[0]
    assert plane.steps == [
        "check_saved_model",
        "load tags=serve,gpu",
        "read_graph",
        "create_session",
        "restore",
        "run_init",
        "make_callables",
        "finish",
    ]


def test_strict_loader_has_shapes_checked(version: Path) -> None:
    plane = FakePlane()
    make_loader(version, plane, has_strict_input_shapes=True).load(FakeProgress())
    assert plane.steps[2:4] == ["read_graph", "check_input_shapes"]


def test_load_of_a_version_that_lacks_an_asset_goes_on(version: Path) -> None:
    plane = FakePlane()
    (version / "names_an_asset").touch()
    assert make_loader(version, plane).load(FakeProgress()) is plane.servables[0]


def test_load_with_unset_variables_fails_with_names(version: Path) -> None:
    plane = FakePlane()
    plane.variables_without_value = [f"v{i}" for i in range(7)]
    with pytest.raises(FailedPrecondition) as failed:
        make_loader(version, plane).load(FakeProgress())
    message = failed.value.message
    assert "7 variables" in message
    assert "'v0', 'v1', 'v2', 'v3', 'v4' and 2 more" in message
    assert "model.export(path)" in message
    assert "v5" not in message
    assert plane.loads[0].is_discarded


def test_load_whose_signature_may_set_variables_warns(version: Path) -> None:
    plane = FakePlane()
    plane.variables_without_value = ["counter"]
    plane.may_write_variables = True
    with capture_logs() as lines:
        make_loader(version, plane).load(FakeProgress())
    assert [line["count"] for line in lines if line["event"] == "variables_without_value"] == [1]


def test_load_with_unfilled_tables_fails_with_names(version: Path) -> None:
    plane = FakePlane()
    plane.tables_without_value = ["vocabulary"]
    with pytest.raises(FailedPrecondition, match=r"1 tables that no init op fills: 'vocabulary'"):
        make_loader(version, plane).load(FakeProgress())
    assert plane.loads[0].is_discarded


def test_load_whose_signature_may_fill_tables_warns(version: Path) -> None:
    plane = FakePlane()
    plane.tables_without_value = ["vocabulary"]
    plane.may_write_variables = True
    with capture_logs() as lines:
        make_loader(version, plane).load(FakeProgress())
    assert [line["count"] for line in lines if line["event"] == "tables_without_value"] == [1]


def test_load_without_a_kernel_fails_with_the_op(version: Path) -> None:
    plane = FakePlane()
    plane.missing_kernels = [FakeMissingKernel(op="EagerPyFunc", node="py", function="inner")]
    with pytest.raises(FailedPrecondition) as failed:
        make_loader(version, plane).load(FakeProgress())
    assert "op EagerPyFunc (node 'py' in function 'inner'" in failed.value.message
    assert "tf.py_function" in failed.value.message
    assert "create_session" not in plane.steps
    assert plane.loads[0].is_discarded


def test_load_without_a_kernel_in_a_branch_warns(version: Path) -> None:
    plane = FakePlane()
    plane.missing_kernels = [FakeMissingKernel(is_certain=False, is_built=False)]
    with capture_logs() as lines:
        make_loader(version, plane).load(FakeProgress())
    assert len([line for line in lines if line["event"] == "op_without_kernel"]) == 1


def test_loader_times_every_stage(version: Path) -> None:
    plane, clock, progress = FakePlane(), FakeClock(), FakeProgress()
    plane.after_step = lambda step: clock.advance(3 if step == "restore" else 1)
    make_loader(version, plane, clock).load(progress)
    ended = [line for line in progress.lines if not line.endswith("began")]
    assert ended == [
        "check 1",
        "read_graph 1",
        "create_session 1",
        "restore 3",
        "init 1",
        "make_callables 1",
        "warm_up 0",
        "gates 0",
    ]


def test_loader_warms_up_before_publish(version: Path) -> None:
    plane = FakePlane()
    answers = []

    def warm_up(directory: Path, ask: Ask, cancellation: Cancellation) -> None:
        assert directory == version
        answers.append(ask("Predict", b"record"))

    gates = GateSettings(convergence=OFF)
    make_loader(version, plane, warm_up=warm_up, gates=gates).load(FakeProgress())
    assert answers == [b"answer"]
    assert plane.servables[0].predicted == [b"record"]
    assert not plane.servables[0].is_published


@pytest.mark.parametrize(
    "step", ["check_saved_model", "read_graph", "create_session", "restore", "run_init", "finish"]
)
def test_loader_failing_step_raises_its_status(version: Path, step: str) -> None:
    plane = FakePlane()
    plane.failures[step] = StatusError(15, "bad checksum")
    with pytest.raises(DataLoss, match="bad checksum"):
        make_loader(version, plane).load(FakeProgress())
    assert plane.servables == []


def test_loader_unknown_op_fails_with_its_remedy(version: Path) -> None:
    plane = FakePlane()
    plane.missing_ops = ["SentencepieceOp"]
    with pytest.raises(
        FailedPrecondition,
        match=r"op SentencepieceOp is not registered: .*--op_package=NAME",
    ):
        make_loader(version, plane).load(FakeProgress())
    assert "create_session" not in plane.steps
    assert plane.loads[0].is_discarded


def test_missing_ops_message_of_many_ops_stays_short() -> None:
    message = missing_ops_message([f"Op{number}" for number in range(500)])
    assert message.startswith("ops Op0, ")
    assert "Op9 and 490 more are not registered" in message
    assert len(message) < 300


def test_loader_reads_the_graph_again_with_added_ops(version: Path) -> None:
    plane = FakePlane()
    plane.missing_ops = ["AnOp"]

    def find_libraries(package: str) -> list[str]:
        plane.missing_ops = []
        return [f"{package}.so"]

    make_loader(version, plane, ops=InstalledOps(find_libraries)).load(FakeProgress())
    assert plane.op_libraries == ["tensorflow-text.so"]
    assert plane.loads[0].is_discarded
    assert not plane.loads[1].is_discarded


def test_loader_failing_warm_up_frees_the_servable(version: Path) -> None:
    plane = FakePlane()

    def warm_up(directory: Path, ask: Ask, cancellation: Cancellation) -> None:
        raise DataLoss("record 3")

    with pytest.raises(DataLoss, match="record 3"):
        make_loader(version, plane, warm_up=warm_up).load(FakeProgress())
    assert [servable.is_destroyed for servable in plane.servables] == [True]


def test_loader_failing_record_keeps_status_code(version: Path) -> None:
    plane = FakePlane()

    def warm_up(directory: Path, ask: Ask, cancellation: Cancellation) -> None:
        plane.servables[0].predict_error = StatusError(3, "input 'x' is missing")
        ask("Predict", b"record")

    with pytest.raises(InvalidArgument, match="input 'x' is missing"):
        make_loader(version, plane, warm_up=warm_up).load(FakeProgress())


# All stages but the last two: a load is not stopped after the gates, and the manager publishes.
@pytest.mark.parametrize("stage", list(LoadStage)[:-2])
def test_loader_cancelled_stops_before_the_next_stage(version: Path, stage: LoadStage) -> None:
    plane, progress = FakePlane(), FakeProgress(cancel_after=stage)
    plane.accelerated = [ACCELERATED]
    loader = make_loader(
        version,
        plane,
        arenas=arenas_of(FakeSlabPool()),
        reservoir=FakeReservoir(),
        batching=lambda directory: SETTINGS,
        accelerator=ACCELERATOR_USE,
    )
    with pytest.raises(Cancelled):
        loader.load(progress)
    assert progress.lines[-1].startswith(stage.value)
    assert all(servable.is_destroyed for servable in plane.servables)


def test_loader_with_batching_analyzes_rows(version: Path) -> None:
    plane = FakePlane()
    make_loader(version, plane, batching=lambda directory: SETTINGS).load(FakeProgress())
    assert plane.steps[-4:-1] == ["run_init", "analyze_rows", "make_callables"]


def test_loader_analyzes_rows_for_an_accelerator(version: Path) -> None:
    plane, progress = FakePlane(), FakeProgress()
    make_loader(
        version,
        plane,
        accelerator=ACCELERATOR_USE,
        accelerator_memory_bytes=7_000,
        accelerator_priority=Priority.LOW,
    ).load(progress)
    steps = ["run_init", "analyze_rows", "draft_programs", "use_accelerator", "make_callables"]
    assert plane.steps[-6:-1] == steps
    assert plane.loads[-1].accelerator_uses == [
        ((ACCELERATOR,), (1, 8), "/cache", "auto", 7_000, True, False, False)
    ]
    assert any(line.startswith("compile") for line in progress.lines)


UNTUNED = replace(ACCELERATED, untuned_rows=(1,))


def tuned_later() -> tuple[Autotuning, AcceleratorUse]:
    """Autotuning that was not started, and its use of an accelerator."""
    runs = program_runs(lambda *_: FakeChild())
    trials = TrialRuns(Arguments("/p.so", "/cache", memory_share=0.05), runs)
    autotuning = Autotuning(trials, StatusError, SystemClock())
    return autotuning, replace(ACCELERATOR_USE, autotuning=autotuning)


@pytest.mark.parametrize(
    ("accelerated", "expected"), [(UNTUNED, Tuning(TuningState.WAITING)), (ACCELERATED, None)]
)
def test_loader_leaves_untuned_programs_for_later(
    version: Path, accelerated: AcceleratedSignature, expected: Tuning | None
) -> None:
    plane = FakePlane()
    plane.accelerated = [accelerated]
    autotuning, use = tuned_later()
    make_loader(version, plane, accelerator=use).load(FakeProgress())
    assert plane.loads[-1].accelerator_uses[0][-1] is True
    assert autotuning.tuning(plane.servables[-1].id) == expected


def test_loader_that_fails_leaves_nothing_to_tune(version: Path) -> None:
    plane = FakePlane()
    plane.accelerated = [UNTUNED]
    autotuning, use = tuned_later()

    def warm_up(directory: Path, ask: Ask, cancellation: Cancellation) -> None:
        raise FailedPrecondition("record 1 fails")

    with pytest.raises(FailedPrecondition, match="record 1 fails"):
        make_loader(version, plane, accelerator=use, warm_up=warm_up).load(FakeProgress())
    assert autotuning.tunings() == {}


def test_loader_measures_sides_after_the_warm_up(version: Path) -> None:
    plane, progress = FakePlane(), FakeProgress()
    plane.accelerated = [ACCELERATED]
    servable = make_loader(version, plane, accelerator=ACCELERATOR_USE).load(progress)
    assert [size.is_on_accelerator for size in servable.accelerator_signatures()[0].sizes] == [
        False
    ]
    stages = [line.split()[0] for line in progress.lines]
    assert stages.index("warm_up") < stages.index("measure") < stages.index("gates")


def test_loader_obeys_platform_tensorflow(version: Path) -> None:
    plane, progress = FakePlane(), FakeProgress()
    loader = make_loader(version, plane, accelerator=ACCELERATOR_USE, platform=Platform.TENSORFLOW)
    loader.load(progress)
    assert "use_accelerator" not in plane.steps
    assert not any(line.startswith("compile") for line in progress.lines)


def test_loader_obeys_platform_pjrt(version: Path) -> None:
    plane = FakePlane()
    loader = make_loader(
        version,
        plane,
        accelerator=ACCELERATOR_USE,
        platform=Platform.PJRT,
        accelerator_tables=TablePlace.HOST,
    )
    with pytest.raises(FailedPrecondition, match="no signature can run on the accelerator"):
        loader.load(FakeProgress())
    assert plane.loads[-1].is_discarded
    plane.accelerated = [
        AcceleratedSignature(
            name="serving_default", rows=(1, 8), reason="", host_ops=(), host_tables=()
        )
    ]
    loader.load(FakeProgress())
    assert plane.loads[-1].accelerator_uses == [
        ((ACCELERATOR,), (1, 8), "/cache", "host", 0, False, True, False)
    ]


def test_platform_pjrt_needs_an_accelerator(version: Path) -> None:
    plane = FakePlane()
    loader = make_loader(version, plane, platform=Platform.PJRT)
    with pytest.raises(FailedPrecondition, match="start it with --accelerator"):
        loader.load(FakeProgress())
    assert plane.loads == []


def test_loader_proves_batching_after_warm_up(version: Path) -> None:
    plane, progress = FakePlane(), FakeProgress()
    batched: list[bool] = []

    def warm_up(directory: Path, ask: Ask, cancellation: Cancellation) -> None:
        batched.append(plane.servables[0].batched[0].is_on)

    loader = make_loader(version, plane, warm_up=warm_up, batching=lambda directory: SETTINGS)
    servable = loader.load(progress)
    assert plane.loads[0].batching is SETTINGS
    assert batched == [False]
    assert [state.is_on for state in servable.batching()] == [True]


def test_loader_warms_up_batches_of_the_predecessor(version: Path) -> None:
    predecessor = FakeServable(ServableId("m", 6))
    predecessor.hot_batch_count = 3
    loader = make_loader(
        version,
        FakePlane(),
        batching=lambda directory: SETTINGS,
        incumbent=lambda servable_id: predecessor,
    )
    with structlog.testing.capture_logs() as logs:
        loader.load(FakeProgress())
    (warmed,) = [log for log in logs if log["event"] == "batches_warmed_up"]
    assert (warmed["model"], warmed["version"], warmed["count"]) == ("m", 7, 3)


def test_loader_cancelled_ends_the_proof_of_batching(version: Path) -> None:
    plane, progress = FakePlane(), FakeProgress()
    plane.on_verification = progress.cancellation.cancel
    with pytest.raises(Cancelled, match="the verification of batches stopped"):
        make_loader(version, plane, batching=lambda directory: SETTINGS).load(progress)
    assert plane.servables[0].is_destroyed


def test_loader_refuses_wrong_batching_at_its_check(version: Path) -> None:
    def batching(directory: Path) -> object:
        raise InvalidConfig(f"{directory}/batching_params.pbtxt: no")

    plane, progress = FakePlane(), FakeProgress()
    with pytest.raises(InvalidConfig, match=r"7/batching_params\.pbtxt: no"):
        make_loader(version, plane, batching=batching).load(progress)
    assert not plane.loads


def test_loader_logs_refused_batching(version: Path) -> None:
    plane = FakePlane()
    plane.refused_signatures = {"serving_default": "rows are mixed"}
    with structlog.testing.capture_logs() as logs:
        servable = make_loader(version, plane, batching=lambda directory: SETTINGS).load(
            FakeProgress()
        )
    assert not servable.batching()[0].is_on
    refused = [log for log in logs if log["event"] == "batching_refused"]
    assert [(log["signature"], log["reason"]) for log in refused] == [
        ("serving_default", "rows are mixed")
    ]


def test_loader_without_batching_has_no_stage_for_it(version: Path) -> None:
    progress = FakeProgress()
    make_loader(version, FakePlane()).load(progress)
    assert not any("verify_batching" in line for line in progress.lines)


def test_loader_cancelled_warm_up_frees_servable(
    version: Path,
) -> None:
    plane, progress = FakePlane(), FakeProgress()

    def warm_up(directory: Path, ask: Ask, cancellation: Cancellation) -> None:
        assert not cancellation.is_cancelled
        assert not plane.servables[0].are_runs_cancelled
        cancellation.cancel()
        assert progress.cancellation.is_cancelled
        # A record that is running ends too.
        assert plane.servables[0].are_runs_cancelled
        raise Cancelled("record 2")

    with pytest.raises(Cancelled, match="record 2"):
        make_loader(version, plane, warm_up=warm_up).load(progress)
    assert [servable.is_destroyed for servable in plane.servables] == [True]


@pytest.mark.parametrize("step", ["check_saved_model", "read_graph", "restore", "make_callables"])
def test_loader_reports_directory_removed_during_load(version: Path, step: str) -> None:
    plane = FakePlane()

    def remove(at: str) -> None:
        if at == step:
            (version / "saved_model.pb").unlink()
            version.rmdir()

    plane.after_step = remove
    with pytest.raises(NotFound, match=f"{version} was removed during the load"):
        make_loader(version, plane).load(FakeProgress())
    assert all(servable.is_destroyed for servable in plane.servables)


def test_loader_vanished_file_is_vanished_directory(version: Path) -> None:
    plane = FakePlane()
    plane.failures["restore"] = StatusError(5, "variables.index not found")

    def remove(at: str) -> None:
        if at == "create_session":
            version.rename(version.parent / "7.denied")

    plane.after_step = remove
    with pytest.raises(MillpondError, match="was removed"):
        make_loader(version, plane).load(FakeProgress())


def replace_by_link(version: Path) -> None:
    """Makes the path lead to another export, as a switch of a link does."""
    other = version.with_name("other")
    (other / "variables").mkdir(parents=True)
    (other / "saved_model.pb").write_bytes(b"graph")
    version.rename(version.with_name("first"))
    version.symlink_to(other)


def rewrite_variables(version: Path) -> None:
    (version / "variables" / "variables.index").write_bytes(b"other")


def add_hard_link(version: Path) -> None:
    os.link(version / "variables" / "variables.index", version.with_name("index"))


def add_warm_up(version: Path) -> None:
    (version / "assets.extra").mkdir()
    (version / "assets.extra" / "tf_serving_warmup_requests").write_bytes(b"")


@pytest.fixture
def plane_and_version(version: Path) -> tuple[FakePlane, Path]:
    (version / "variables").mkdir()
    (version / "variables" / "variables.index").write_bytes(b"index")
    return FakePlane(), version


@pytest.mark.parametrize("change", [replace_by_link, rewrite_variables])
def test_load_of_two_exports_fails_and_is_retried(
    plane_and_version: tuple[FakePlane, Path], change: Callable[[Path], None]
) -> None:
    """The graph would be of one export, and the variables of another."""
    plane, version = plane_and_version
    plane.after_step = lambda at: change(version) if at == "read_graph" else None
    with pytest.raises(Unavailable, match="changed during the load") as failure:
        make_loader(version, plane).load(FakeProgress())
    assert failure.value.is_transient
    assert plane.servables == []


def test_load_that_a_mixture_fails_is_retried(
    plane_and_version: tuple[FakePlane, Path],
) -> None:
    """A key that only one export has fails the restore, and says nothing about either export."""
    plane, version = plane_and_version
    plane.after_step = lambda at: rewrite_variables(version) if at == "read_graph" else None
    plane.failures["restore"] = StatusError(15, "bad checksum")
    with pytest.raises(Unavailable, match="changed during the load") as failure:
        make_loader(version, plane).load(FakeProgress())
    assert failure.value.is_transient
    assert "bad checksum" in str(failure.value.__cause__)


def test_load_sees_linked_variables_replaced(plane_and_version: tuple[FakePlane, Path]) -> None:
    plane, version = plane_and_version
    for name in ("first", "second"):
        shutil.copytree(version / "variables", version.with_name(name))
    shutil.rmtree(version / "variables")
    (version / "variables").symlink_to(version.with_name("first"))

    def switch(at: str) -> None:
        if at == "read_graph":
            (version / "variables").unlink()
            (version / "variables").symlink_to(version.with_name("second"))

    plane.after_step = switch
    with pytest.raises(Unavailable, match="changed during the load"):
        make_loader(version, plane).load(FakeProgress())


@pytest.mark.parametrize("change", [add_hard_link, add_warm_up])
def test_load_goes_on_beside_harmless_changes(
    plane_and_version: tuple[FakePlane, Path], change: Callable[[Path], None]
) -> None:
    plane, version = plane_and_version
    plane.after_step = lambda at: change(version) if at == "read_graph" else None
    entries_before = sorted(version.parent.rglob("*"))
    make_loader(version, plane).load(FakeProgress())
    assert sorted(version.parent.rglob("*")) != entries_before
    assert len(plane.servables) == 1


# --- Memory of its own ----------------------------------------------------------------------------


def test_loader_takes_arena_before_session(version: Path) -> None:
    plane, pool = FakePlane(), FakeSlabPool()
    servable = make_loader(version, plane, arenas=arenas_of(pool)).load(FakeProgress())
    assert plane.steps.index("take_arena") == plane.steps.index("create_session") - 1
    assert pool.used_bytes == plane.parameter_bytes + 10
    assert pool.expected == {"m": servable}


def test_loader_unfit_version_is_not_read(version: Path) -> None:
    plane = FakePlane()
    plane.parameter_bytes = 2_000_000
    with pytest.raises(ResourceExhausted, match=r"m/7 needs 2.0 MB .* 1.0 MB are available"):
        make_loader(version, plane, arenas=arenas_of(FakeSlabPool())).load(FakeProgress())
    assert "restore" not in plane.steps
    assert plane.loads[0].is_discarded


@pytest.mark.parametrize("step", ["create_session", "restore", "run_init", "make_callables"])
def test_loader_failing_step_frees_load_and_logs_leak(version: Path, step: str) -> None:
    plane = FakePlane()
    plane.failures[step] = StatusError(8, "no memory")

    def leak(at: str) -> None:
        if at == "take_arena":
            plane.loads[0].remains = ArenaRemains(192, [(64, 1), (128, 1)])

    plane.after_step = leak
    with capture_logs() as logs, pytest.raises(ResourceExhausted):
        make_loader(version, plane, arenas=arenas_of(FakeSlabPool())).load(FakeProgress())
    leaks = [log for log in logs if log["event"] == "arena_leaked"]
    assert [(log["live_bytes"], log["live_blocks"]) for log in leaks] == [(192, "1 x 64, 1 x 128")]
    assert plane.loads[0].is_discarded


def test_loader_cancellation_reaches_data_plane_step(version: Path) -> None:
    plane, progress = FakePlane(), FakeProgress()

    def cancel(at: str) -> None:
        if at == "restore":
            progress.cancellation.cancel()
            assert plane.loads[0].is_cancelled
            raise StatusError(1, "the load is cancelled")

    plane.after_step = cancel
    with pytest.raises(Cancelled):
        make_loader(version, plane).load(progress)


def test_loader_restores_at_its_pace(version: Path) -> None:
    plane = FakePlane()
    loader = make_loader(version, plane, restore_bytes_per_second=5_000, load_seconds_target=4.5)
    loader.load(FakeProgress())
    assert plane.loads[0].bytes_per_second == [5_000]
    assert plane.loads[0].restore_targets == [4.5]


def test_loader_seals_arena_of_warm_version(version: Path) -> None:
    plane = FakePlane()

    def warm_up(directory: Path, ask: Ask, cancellation: Cancellation) -> None:
        assert not plane.servables[0].is_sealed

    servable = make_loader(version, plane, warm_up=warm_up, is_sealing=True).load(FakeProgress())
    assert servable is plane.servables[0]
    assert plane.servables[0].is_sealed


def test_loader_makes_known_callables_in_arena(
    version: Path,
) -> None:
    plane = FakePlane()
    make_loader(version, plane, reservoir=FakeReservoir(kept=[b"a", b"b"])).load(FakeProgress())
    assert plane.loads[0].callables_made == [b"a", b"b"]
    assert plane.steps[-4:] == ["make_callables", "make_callable", "make_callable", "finish"]


def test_loader_survives_request_without_callable(
    version: Path,
) -> None:
    plane = FakePlane()
    plane.failures["make_callable"] = StatusError(9, "no such signature")
    make_loader(version, plane, reservoir=FakeReservoir(kept=[b"a"])).load(FakeProgress())
    assert plane.steps[-1] == "finish"


def test_loader_reports_unsealed_writing_model(
    version: Path,
) -> None:
    plane = FakePlane()
    plane.may_write_variables = True
    with capture_logs() as logs:
        make_loader(version, plane, is_sealing=True).load(FakeProgress())
    assert "arena_not_sealed" in [log["event"] for log in logs]


def test_loader_replays_live_requests_after_records(version: Path) -> None:
    plane = FakePlane()
    order = []

    def warm_up(directory: Path, ask: Ask, cancellation: Cancellation) -> None:
        order.append("records")

    def self_warm_up(
        requests: Sequence[bytes], *, make_callable: Any, predict: Any, **how: Any
    ) -> SelfWarmUpResult:
        order.append(f"requests {list(requests)}")
        make_callable(requests[0])
        assert predict(requests[0]) == b"answer"
        return self_warm_up_result()

    make_loader(
        version,
        plane,
        warm_up=warm_up,
        self_warm_up=self_warm_up,
        reservoir=FakeReservoir(kept=[b"live"], kept_jointly=[b"joint"]),
    ).load(FakeProgress())
    assert order == ["records", "requests [b'live']"]
    assert plane.servables[0].callables_made == [b"live"]
    assert plane.servables[0].predicted == [b"live"]
    assert plane.servables[0].answered_jointly == [b"joint", b"joint"]


def test_loader_cancelled_self_warm_up_reports_nothing(version: Path) -> None:
    plane, progress = FakePlane(), FakeProgress()

    def self_warm_up(requests: Sequence[bytes], **how: Any) -> SelfWarmUpResult:
        progress.cancellation.cancel()
        assert plane.servables[0].are_runs_cancelled
        return replace(self_warm_up_result(), run_count=0, failed_count=1)

    loader = make_loader(
        version, plane, self_warm_up=self_warm_up, reservoir=FakeReservoir(kept=[b"live"])
    )
    with capture_logs() as logs, pytest.raises(Cancelled, match="stopped in its self-warm-up"):
        loader.load(progress)
    assert not [log for log in logs if log["event"] == "self_warmed_up"]
    assert plane.servables[0].is_destroyed


def test_loader_puts_back_what_replays_write(version: Path) -> None:
    plane, progress = FakePlane(), FakeProgress()
    plane.may_write_variables = True

    def replay(requests: Sequence[bytes], **how: Any) -> SelfWarmUpResult:
        servable = plane.servables[0]
        servable.writing_requests = {b"writes"}
        result = self_warm_up(requests, clock=FakeClock(), **how)
        assert servable.written == [b"writes", b"writes"]
        return result

    with capture_logs() as logs:
        make_loader(
            version,
            plane,
            self_warm_up=replay,
            reservoir=FakeReservoir(kept=[b"writes"]),
            arenas=arenas_of(FakeSlabPool()),
        ).load(progress)
    assert plane.servables[0].written == []
    # Half of the free memory: the parameters are in place.
    assert plane.servables[0].keepable_bytes == 500_000
    events = [log["event"] for log in logs]
    assert "state_put_back" in events
    assert "requests_not_repeated" not in events
    assert progress.figures["changes_variables"] == 1
    assert progress.figures["unrepeatable_count"] == 0
    assert progress.notes == {"unrepeatable_reason": ""}


def test_next_version_needs_no_room_for_kept_state(version: Path) -> None:
    plane, pool = FakePlane(), FakeSlabPool()
    plane.warm_up_bytes = 999_500
    arenas = arenas_of(pool)

    def warm_up(directory: Path, ask: Ask, cancellation: Cancellation) -> None:
        plane.servables[-1].kept_state_bytes = 999_000

    for _ in range(2):
        make_loader(version, plane, warm_up=warm_up, arenas=arenas).load(FakeProgress())
    assert len(plane.servables) == 2


def test_loader_replays_no_more_than_can_be_put_back(version: Path) -> None:
    plane, progress = FakePlane(), FakeProgress()
    plane.may_write_variables = True

    def replay(requests: Sequence[bytes], **how: Any) -> SelfWarmUpResult:
        servable = plane.servables[0]
        servable.unkeepable_requests = {b"writes", b"joint"}
        return self_warm_up(requests, clock=FakeClock(), **how)

    with capture_logs() as logs:
        make_loader(
            version,
            plane,
            self_warm_up=replay,
            reservoir=FakeReservoir(kept=[b"live", b"writes"], kept_jointly=[b"joint"]),
        ).load(progress)
    assert plane.servables[0].predicted == [b"live", b"live"]
    assert plane.servables[0].answered_jointly == []
    (event,) = [log for log in logs if log["event"] == "requests_not_repeated"]
    assert (event["log_level"], event["count"]) == ("warning", 1)
    assert progress.notes["unrepeatable_reason"] == event["reason"]
    assert event["reason"] == "a request may change a variable"
    assert progress.figures["changes_variables"] == 1
    assert progress.figures["unrepeatable_count"] == 1
    assert progress.figures["self_warm_up_failed_count"] == 0


@pytest.mark.parametrize(
    ("run_count", "failed_count", "level"), [(2, 0, "info"), (2, 1, "warning"), (0, 1, "error")]
)
def test_loader_logs_failed_replays_by_their_share(
    version: Path, run_count: int, failed_count: int, level: str
) -> None:
    progress = FakeProgress()

    def self_warm_up(requests: Sequence[bytes], **how: Any) -> SelfWarmUpResult:
        return replace(self_warm_up_result(), run_count=run_count, failed_count=failed_count)

    with capture_logs() as logs:
        make_loader(
            version, FakePlane(), self_warm_up=self_warm_up, reservoir=FakeReservoir(kept=[b"live"])
        ).load(progress)
    (event,) = [log for log in logs if log["event"] == "self_warmed_up"]
    assert event["log_level"] == level
    assert progress.figures["self_warm_up_request_count"] == run_count + failed_count
    assert progress.figures["self_warm_up_failed_count"] == failed_count


def test_loader_refuses_version_failing_every_replay(version: Path) -> None:
    plane, incumbent = FakePlane(), FakeServable(ServableId("m", 6))

    def self_warm_up(requests: Sequence[bytes], **how: Any) -> SelfWarmUpResult:
        plane.servables[0].respond = refuse_all
        return replace(
            self_warm_up_result(), run_count=0, failed_count=1, failed_requests=(b"live",)
        )

    loader = make_loader(
        version,
        plane,
        self_warm_up=self_warm_up,
        reservoir=FakeReservoir(kept=[b"live"]),
        incumbent=lambda servable_id: incumbent,
    )
    with pytest.raises(FailedPrecondition, match="gate 'self_warm_up': it fails all 1 replayed"):
        loader.load(FakeProgress())
    assert plane.servables[0].is_destroyed


def refuse_all(request: bytes) -> bytes:
    raise StatusError(3, "input 'x' is missing")


# --- Gates ----------------------------------------------------------------------------------------

OFF, WARN, ENFORCE = GateMode.OFF, GateMode.WARN, GateMode.ENFORCE


def signatures(*names: str) -> bytes:
    definitions = get_model_metadata_pb2.SignatureDefMap()
    for name in names:
        definitions.signature_def[name].method_name = "predict"
    serialized: bytes = definitions.SerializeToString()
    return serialized


def incumbent_with(*names: str) -> FakeServable:
    servable = FakeServable(ServableId("m", 6))
    servable.signatures = signatures(*names)
    return servable


def load_after(
    incumbent: FakeServable, directory: Path, plane: FakePlane, progress: FakeProgress, **how: Any
) -> None:
    gates = GateSettings(**how)
    loader = make_loader(directory, plane, gates=gates, incumbent=lambda servable_id: incumbent)
    loader.load(progress)


def test_loader_failed_enforced_gate_frees_version(
    version: Path,
) -> None:
    plane, progress = FakePlane(), FakeProgress()
    incumbent = incumbent_with("a")
    with capture_logs() as logs, pytest.raises(FailedPrecondition) as raised:
        load_after(incumbent, version, plane, progress, signature=ENFORCE)
    assert not raised.value.is_transient
    assert "gate 'signature': signature 'a' is gone" in raised.value.message
    assert plane.servables[0].is_destroyed
    assert not incumbent.is_destroyed
    (event,) = [log for log in logs if log["event"] == "gate_not_passed"]
    assert (event["log_level"], event["gate"], event["reason"]) == (
        "error",
        "signature",
        "signature 'a' is gone",
    )


def test_loader_warning_gate_logs_and_loads(version: Path) -> None:
    plane, progress = FakePlane(), FakeProgress()
    with capture_logs() as logs:
        load_after(incumbent_with("a"), version, plane, progress, signature=WARN)
    assert not plane.servables[0].is_destroyed
    assert [log["log_level"] for log in logs if log["event"] == "gate_not_passed"] == ["warning"]
    assert [(verdict.gate, verdict.is_passed) for verdict in progress.verdicts] == [
        ("warm_up", True),
        ("signature", False),
        ("shapes", True),
        ("self_warm_up", True),
        ("failed_share", True),
        ("outputs", True),
        ("finite", True),
        ("constant", True),
        ("golden", True),
        ("latency", True),
        ("drift", True),
    ]


def test_loader_runs_all_gates_before_it_raises(version: Path) -> None:
    progress = FakeProgress()
    with pytest.raises(FailedPrecondition):
        load_after(incumbent_with("a"), version, FakePlane(), progress, signature=ENFORCE)
    assert [verdict.gate for verdict in progress.verdicts][-1] == "drift"


def test_loader_first_version_needs_no_predecessor(version: Path) -> None:
    progress = FakeProgress()
    make_loader(version, FakePlane()).load(progress)
    assert [verdict.gate for verdict in progress.verdicts] == ["warm_up", "finite", "golden"]
    assert progress.lines[-1] == "gates 0"


def two_records(directory: Path, ask: Ask, cancellation: Cancellation) -> None:
    ask("Predict", b"good")
    ask("Predict", b"bad")
    ask("Predict", b"good too")


def refuse_bad(plane: FakePlane) -> WarmUp:
    """Runs a warm-up of two records, one of which the version refuses."""

    def respond(request: bytes) -> bytes:
        if request == b"bad":
            raise StatusError(3, "input 'x' is missing")
        return b"answer"

    def warm_up(directory: Path, ask: Ask, cancellation: Cancellation) -> None:
        plane.servables[-1].respond = respond
        two_records(directory, ask, cancellation)

    return warm_up


@pytest.mark.parametrize(("mode", "events"), [(OFF, []), (WARN, ["gate_not_passed"])])
def test_loader_tolerated_record_failure_runs_others(
    version: Path, mode: GateMode, events: list[str]
) -> None:
    plane, progress = FakePlane(), FakeProgress()
    gates = GateSettings(warm_up=mode, convergence=OFF)
    with capture_logs() as logs:
        make_loader(version, plane, warm_up=refuse_bad(plane), gates=gates).load(progress)
    assert plane.servables[0].predicted == [b"good", b"bad", b"good too"]
    assert [log["event"] for log in logs if "gate" in log] == events
    reasons = [verdict.reason for verdict in progress.verdicts if verdict.gate == "warm_up"]
    assert reasons == (["record 2: input 'x' is missing"] if mode is WARN else [])


def test_loader_enforced_record_failure_ends_load(version: Path) -> None:
    plane, progress = FakePlane(), FakeProgress()
    with pytest.raises(InvalidArgument, match="input 'x' is missing"):
        make_loader(version, plane, warm_up=refuse_bad(plane)).load(progress)
    assert plane.servables[0].predicted == [b"good", b"bad"]
    assert [(verdict.gate, verdict.is_passed) for verdict in progress.verdicts] == [
        ("warm_up", False)
    ]


def load_of_one_that_gets_faster(
    version: Path, plane: FakePlane, progress: FakeProgress, mode: GateMode
) -> None:
    """Each run of its one warm-up record takes three quarters of the one before."""
    clock = FakeClock()

    def warm_up(directory: Path, ask: Ask, cancellation: Cancellation) -> None:
        servable, left_seconds = plane.servables[-1], [64 * 0.75**run for run in range(100)]

        def respond(request: bytes) -> bytes:
            clock.advance(left_seconds.pop(0))
            return b"answer"

        servable.respond = respond
        ask("Predict", b"record")

    gates = GateSettings(convergence=mode, convergence_seconds=300)
    make_loader(version, plane, clock, warm_up=warm_up, gates=gates).load(progress)


def test_loader_refuses_ever_faster_enforced_version(version: Path) -> None:
    plane, progress = FakePlane(), FakeProgress()
    with pytest.raises(FailedPrecondition, match="gate 'convergence': after 33 runs"):
        load_of_one_that_gets_faster(version, plane, progress, ENFORCE)
    assert plane.servables[0].is_destroyed
    # The other gates are evaluated first.
    assert [verdict.gate for verdict in progress.verdicts] == [
        *("warm_up", "convergence", "finite", "golden")
    ]


@pytest.mark.parametrize(("mode", "run_count"), [(WARN, 33), (OFF, 1)])
def test_loader_serves_tolerated_ever_faster_version(
    version: Path, mode: GateMode, run_count: int
) -> None:
    plane = FakePlane()
    load_of_one_that_gets_faster(version, plane, FakeProgress(), mode)
    assert not plane.servables[0].is_destroyed
    assert len(plane.servables[0].predicted) == run_count


def test_loader_runs_variable_writing_record_once(version: Path) -> None:
    plane = FakePlane()
    plane.may_write_variables = True
    load_of_one_that_gets_faster(version, plane, FakeProgress(), ENFORCE)
    assert plane.servables[0].predicted == [b"record"]


def test_loader_cancelled_warm_up_has_no_verdict(version: Path) -> None:
    progress = FakeProgress()

    def warm_up(directory: Path, ask: Ask, cancellation: Cancellation) -> None:
        progress.cancellation.cancel()
        raise Cancelled("record 2")

    with pytest.raises(Cancelled):
        make_loader(version, FakePlane(), warm_up=warm_up).load(progress)
    assert progress.verdicts == []
