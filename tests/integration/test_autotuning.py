"""A server whose accelerator autotunes under a lock, as a GPU does: a plugin over that for CPUs."""

import shutil
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.drive.faulty_device import compiled_plugin, environment_of
from serving.client import Client
from tests.integration.accelerators import plugin_path
from tests.integration.clients import (
    TIMEOUT_SECONDS,
    array,
    caller_to,
    predict_request,
    wait_until,
)
from tests.integration.conftest import StartServer
from tests.integration.exports import drop, let_settle
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.rest_clients import RestClient

_SOURCE = Path(__file__).with_name("cuda_like_plugin.cc")
X = np.ones((4, 8), np.float32)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_plugin(_SOURCE, tmp_path_factory.mktemp("plugin"))


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """Models of a product whose graphs differ: y is 8 * x for the first, 8 * 2 * x for the second, and so on."""
    import tensorflow as tf

    exports = []
    for factor in range(1, 5):
        module = tf.Module()
        module.weights = tf.Variable(tf.ones([8, 3]))

        def serve(x: Any, module: Any = module, factor: int = factor) -> Any:
            return {"y": tf.matmul(x, module.weights) * float(factor)}

        spec = tf.TensorSpec([None, 8], tf.float32, "x")
        directory = tmp_path_factory.mktemp("layers") / "1"
        signature = tf.function(serve, input_signature=[spec])
        tf.saved_model.save(module, str(directory), signatures=signature)
        exports.append(let_settle(directory))
    return exports


class CudaLike:
    """A server with one model on the accelerator, and the directory that controls its plugin."""

    def __init__(self, start: StartServer, directory: Path, plugin: Path, **flags: object) -> None:
        self.control = directory / "control"
        self.control.mkdir()
        environment = {
            **environment_of(plugin_path(), self.control),
            "TMPDIR": str(directory),
        }
        self.host = ModelHost(
            start,
            directory,
            accelerator=f"pjrt:{plugin}",
            accelerator_rows="4",
            environment=environment,
            admin_on_data_port=True,
            **flags,
        )

    def compiled(self) -> Sequence[str]:
        """Says how each program was compiled so far: "server autotuned", "child topology" and the like."""
        path = self.control / "compiled"
        lines = path.read_text().splitlines() if path.exists() else []
        return [
            f"{'server' if int(pid) == self.pid else 'child'} {how}"
            for how, pid in (line.split() for line in lines)
        ]

    def child_pids(self, how: str = "autotuned") -> set[int]:
        """The processes other than the server that have compiled like that."""
        lines = [line.split() for line in (self.control / "compiled").read_text().splitlines()]
        return {int(pid) for done, pid in lines if done == how} - {self.pid}

    @property
    def pid(self) -> int:
        return self.host.server.process_id


def is_there(pid: int) -> bool:
    """True for a zombie of the server too."""
    return Path(f"/proc/{pid}").exists()


def runs(pid: int) -> bool:
    """False for a zombie, which is not the server's any more if the server was killed."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def assert_answers(model: HostedModel, version: int) -> None:
    with caller_to(model.server.target) as caller:
        response = caller.predict(predict_request(model.name, {"x": X}))
        assert response.model_spec.version.value == version
        assert array(response.outputs["y"]) == pytest.approx(np.full((4, 3), 8.0 * version))


def untuned_rows(model: HostedModel) -> Any:
    with Client(model.server.target) as client:
        versions = client.describe_models()[model.name]["versions"]
    version = max(versions, key=lambda item: int(item["version"]))
    return version["accelerator_signatures"][0]["untuned_rows"]


def swap_of(model: HostedModel, version: int) -> Mapping[str, Any]:
    _, document, _ = RestClient(model.server).ask("GET", "/v1/swaps")
    (swap,) = (
        swap
        for swap in document["swaps"]
        if (swap["model"], swap["version"]) == (model.name, version)
    )
    return swap  # type: ignore[no-any-return]


def programs_of(swap: Mapping[str, Any]) -> Mapping[str, int]:
    """The number of a version's programs from each source."""
    sources = ("cached", "process", "server")
    return {source: swap["figures"][f"{source}_programs"] for source in sources}


PJRT = {"platform": "pjrt"}


def autotuning_of(model: HostedModel, version: int) -> Any:
    with Client(model.server.target) as client:
        versions = client.describe_models()[model.name]["versions"]
    (found,) = (item for item in versions if int(item["version"]) == version)
    return found["autotuning"]


def serve_untuned(server: CudaLike, model: HostedModel, layer: Path) -> None:
    """Serves `layer` as version 2 while its process of trials is held up."""
    (server.control / "hold").touch()
    model.serve(layer, 2)
    wait_until(lambda: bool(server.child_pids()), "the process of trials")


def untuned_model(server: CudaLike, layers: Sequence[Path]) -> HostedModel:
    """A model whose second version serves while its program is still to be autotuned."""
    model = server.host.model(settings=PJRT).serve(layers[0])
    serve_untuned(server, model, layers[1])
    return model


def test_programs_are_tuned_while_their_version_serves(
    start_server: StartServer, tmp_path: Path, plugin: Path, layers: Sequence[Path]
) -> None:
    server = CudaLike(start_server, tmp_path, plugin)
    model = server.host.model(settings=PJRT).serve(layers[0])
    assert server.compiled() == ["server autotuned"]
    serve_untuned(server, model, layers[1])
    assert_answers(model, 2)
    assert untuned_rows(model) == [4]
    assert autotuning_of(model, 2) == {"state": "running", "reason": ""}
    assert autotuning_of(model, 1) is None
    swap = swap_of(model, 2)
    assert swap["figures"]["untuned_programs"] == 1
    assert programs_of(swap) == {"cached": 0, "process": 1, "server": 0}
    (server.control / "hold").unlink()
    with asking(model, 2):
        assert model.wait_for_log("programs_tuned", version=2)["programs"] == 1
    assert server.compiled() == ["server autotuned", "child topology", "child autotuned"]
    assert model.wait_for_log("autotuned", version=2)["programs"] == 1
    assert untuned_rows(model) == []
    wait_until(
        lambda: autotuning_of(model, 2) == {"state": "done", "reason": ""}, "the end of autotuning"
    )
    assert_answers(model, 2)
    # A version of a known graph needs no process.
    model.serve(layers[1], 3)
    assert untuned_rows(model) == []
    assert len(server.compiled()) == 3
    assert programs_of(swap_of(model, 3)) == {"cached": 1, "process": 0, "server": 0}
    assert not any(map(is_there, server.child_pids()))


@contextmanager
def asking(model: HostedModel, version: int) -> Iterator[None]:
    """Sends requests from another thread, each of which must be answered right."""
    answered, is_over = threading.Semaphore(0), threading.Event()
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            while not is_over.is_set():
                assert_answers(model, version)
                answered.release()
        except BaseException as error:  # noqa: BLE001 (raised below)
            failures.append(error)
            answered.release()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        assert answered.acquire(timeout=TIMEOUT_SECONDS)
        yield
        assert answered.acquire(timeout=TIMEOUT_SECONDS)
    finally:
        is_over.set()
        thread.join()
    assert failures == []


def test_a_lost_replica_hinders_no_tuning(
    start_server: StartServer, tmp_path: Path, plugin: Path, layers: Sequence[Path]
) -> None:
    server = CudaLike(start_server, tmp_path, plugin)
    settings = {**PJRT, "accelerator_devices": [0, 1], "accelerator_replicas": 2}
    model = server.host.model(settings=settings).serve(layers[0])
    serve_untuned(server, model, layers[1])
    (server.control / "lost").touch()
    for _ in range(4):  # the replicas take turns
        assert_answers(model, 2)
    (server.control / "hold").unlink()
    assert model.wait_for_log("programs_tuned", version=2)["programs"] == 1
    assert untuned_rows(model) == []
    assert_answers(model, 2)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_replica_that_failed_briefly_is_tuned_later(
    start_server: StartServer,
    tmp_path: Path,
    plugin: Path,
    layers: Sequence[Path],
    is_lost: bool,
) -> None:
    server = CudaLike(start_server, tmp_path, plugin)
    settings = {**PJRT, "accelerator_devices": [0, 1], "accelerator_replicas": 2}
    model = server.host.model(settings=settings).serve(layers[0])
    other = server.host.model(settings=settings).serve(layers[0])
    serve_untuned(server, model, layers[1])
    (server.control / "lost").touch()
    for _ in range(4):  # the replicas take turns
        assert_answers(other, 1)
    (server.control / "lost").unlink()
    (server.control / "hold").unlink()
    assert model.wait_for_log("programs_tuned", version=2)["programs"] == 1
    assert "fails now" in model.wait_for_log("autotuning_waits", version=2)["reason"]
    assert untuned_rows(model) == [4]
    if is_lost:  # then nothing is left to tune
        (server.control / "lost").touch()
    for _ in range(4):
        assert_answers(model, 2)
    wait_until(lambda: untuned_rows(model) == [], "the program of the second device")
    assert_answers(model, 2)


def test_a_damaged_program_is_dropped_at_once(
    start_server: StartServer, tmp_path: Path, plugin: Path, layers: Sequence[Path]
) -> None:
    server = CudaLike(start_server, tmp_path, plugin)
    model = untuned_model(server, layers)
    (server.control / "damaged").touch()
    (server.control / "hold").unlink()
    reason = model.wait_for_log("tuned_programs_damaged", version=2)["reason"]
    assert "a program of 4 rows: loading an executable" in reason
    failed = {"state": "failed", "reason": reason}
    wait_until(lambda: autotuning_of(model, 2) == failed, "the end of autotuning")
    assert untuned_rows(model) == [4]
    assert_answers(model, 2)


def test_a_device_that_fails_damages_no_program(
    start_server: StartServer, tmp_path: Path, plugin: Path, layers: Sequence[Path]
) -> None:
    server = CudaLike(start_server, tmp_path, plugin)
    model = untuned_model(server, layers)
    (server.control / "gone").touch()
    (server.control / "hold").unlink()
    assert "fails now" in model.wait_for_log("autotuning_waits", version=2)["reason"]
    (server.control / "gone").unlink()
    # A run ends well, so the device counts as well again.
    assert_answers(model, 2)
    assert model.wait_for_log("programs_tuned", version=2)["programs"] == 1
    assert not model.logged("tuned_programs_damaged")
    assert_answers(model, 2)


def test_a_crash_of_the_process_leaves_first_choices(
    start_server: StartServer, tmp_path: Path, plugin: Path, layers: Sequence[Path]
) -> None:
    server = CudaLike(start_server, tmp_path, plugin)
    model = server.host.model(settings=PJRT).serve(layers[0])
    (server.control / "crash").touch()
    model.serve(layers[1], 2)
    line = model.wait_for_log("autotuning_failed", version=2)
    assert line["reason"] == f"the process ended with status {-signal.SIGABRT}"
    assert server.compiled() == ["server autotuned", "child topology", "child autotuned"]
    assert_answers(model, 2)
    assert untuned_rows(model) == [4]
    waiting, failed = (
        {"state": state, "reason": line["reason"]} for state in ("waiting", "failed")
    )
    wait_until(lambda: autotuning_of(model, 2) == waiting, "the pause before another process")
    wait_until(lambda: autotuning_of(model, 2) == failed, "the end of autotuning")
    assert server.compiled()[2:] == ["child autotuned"] * 2
    assert_answers(model, 2)


def test_a_process_that_hangs_is_killed(
    start_server: StartServer, tmp_path: Path, plugin: Path, layers: Sequence[Path]
) -> None:
    server = CudaLike(start_server, tmp_path, plugin, accelerator_autotuning_seconds=8)
    model = untuned_model(server, layers)
    children = server.child_pids()
    assert "more than 8 s" in model.wait_for_log("autotuning_failed", version=2)["reason"]
    # On a slow machine it may be the second process that gets so far.
    wait_until(lambda: not any(map(is_there, children)), "the end of the process")
    assert_answers(model, 2)


def test_an_unwritable_cache_serves_all_the_same(
    start_server: StartServer, tmp_path: Path, plugin: Path, layers: Sequence[Path]
) -> None:
    cache = tmp_path / "cache"
    server = CudaLike(start_server, tmp_path, plugin, accelerator_cache_directory=cache)
    model = server.host.model(settings=PJRT).serve(layers[0])
    for file in cache.iterdir():
        file.unlink()
    cache.rmdir()
    model.serve(layers[1], 2)
    assert "cannot be written" in model.wait_for_log("programs_left_to_server", version=2)["stderr"]
    assert programs_of(swap_of(model, 2)) == {"cached": 0, "process": 0, "server": 1}
    assert "cannot be written" in model.wait_for_log("autotuning_failed", version=2)["stderr"]
    assert_answers(model, 2)


def test_a_version_that_is_replaced_ends_its_process(
    start_server: StartServer, tmp_path: Path, plugin: Path, layers: Sequence[Path]
) -> None:
    server = CudaLike(start_server, tmp_path, plugin)
    model = untuned_model(server, layers)
    first = server.child_pids()
    model.serve(layers[2], 3)
    wait_until(lambda: not any(map(is_there, first)), "the end of the first process")
    wait_until(lambda: server.child_pids() > first, "the process of the next version")
    (server.control / "hold").unlink()
    model.wait_for_log("programs_tuned", version=3)
    assert_answers(model, 3)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_ends_leaves_no_process(
    start_server: StartServer, tmp_path: Path, plugin: Path, layers: Sequence[Path], how: int
) -> None:
    server = CudaLike(start_server, tmp_path, plugin)
    model = untuned_model(server, layers)
    children = server.child_pids()
    assert list(tmp_path.glob("millpond-programs-*"))
    if how == signal.SIGTERM:
        model.server.stop()
        assert not list(tmp_path.glob("millpond-programs-*"))
    else:
        model.server.kill()
    wait_until(lambda: not any(map(runs, children)), "the end of the process")


def test_autotuning_can_be_turned_off(
    start_server: StartServer, tmp_path: Path, plugin: Path, layers: Sequence[Path]
) -> None:
    server = CudaLike(start_server, tmp_path, plugin, accelerator_autotuning="never")
    model = server.host.model(settings=PJRT).serve(layers[0])
    assert server.compiled() == ["server first"]
    assert untuned_rows(model) == [4]


def test_only_the_start_autotunes_if_asked(
    start_server: StartServer, tmp_path: Path, plugin: Path, layers: Sequence[Path]
) -> None:
    server = CudaLike(start_server, tmp_path, plugin, accelerator_autotuning="start")
    model = server.host.model(settings=PJRT).serve(layers[0])
    assert server.compiled() == ["server autotuned"]
    model.serve(layers[1], 2)
    assert server.compiled() == ["server autotuned", "child topology"]
    assert untuned_rows(model) == [4]


def test_a_server_may_compile_itself(
    start_server: StartServer, tmp_path: Path, plugin: Path, layers: Sequence[Path]
) -> None:
    server = CudaLike(start_server, tmp_path, plugin, accelerator_compile_process=False)
    model = server.host.model(settings=PJRT).serve(layers[0]).serve(layers[1], 2)
    assert server.compiled()[:2] == ["server autotuned", "server first"]
    assert programs_of(swap_of(model, 2)) == {"cached": 0, "process": 0, "server": 1}


def test_a_crash_of_the_compiler_costs_one_version(
    start_server: StartServer, tmp_path: Path, plugin: Path, layers: Sequence[Path]
) -> None:
    server = CudaLike(start_server, tmp_path, plugin)
    model = server.host.model(settings=PJRT).serve(layers[0])
    (server.control / "crash-topology").touch()
    drop(layers[1], model.base_path, 2)
    error = model.wait_for_log("load_failed", version=2)["reason"]
    assert "SIGABRT" in error
    assert "signature 'serving_default', 4 rows" in error
    assert 'set platform = "tensorflow"' in error
    assert_answers(model, 1)
    assert server.compiled() == ["server autotuned", "child topology"]
    (server.control / "crash-topology").unlink()
    model.serve(layers[2], 3)
    assert_answers(model, 3)


def hold_compilation(server: CudaLike, model: HostedModel, layer: Path) -> set[int]:
    """Begins to load `layer` as version 2, whose process is held up. Returns the process."""
    (server.control / "hold-topology").touch()
    drop(layer, model.base_path, 2)
    wait_until(lambda: bool(server.child_pids("topology")), "the process that compiles")
    return server.child_pids("topology")


def test_a_load_that_is_cancelled_leaves_no_process(
    start_server: StartServer, tmp_path: Path, plugin: Path, layers: Sequence[Path]
) -> None:
    server = CudaLike(start_server, tmp_path, plugin)
    model = server.host.model(settings=PJRT).serve(layers[0])
    children = hold_compilation(server, model, layers[1])
    with asking(model, 1):
        assert all(map(runs, children))
    shutil.rmtree(model.base_path / "2")
    wait_until(lambda: not any(map(is_there, children)), "the end of the process")
    assert_answers(model, 1)
    assert server.compiled() == ["server autotuned", "child topology"], "nobody compiles it now"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_ends_while_it_compiles(
    start_server: StartServer, tmp_path: Path, plugin: Path, layers: Sequence[Path], how: int
) -> None:
    server = CudaLike(start_server, tmp_path, plugin)
    model = server.host.model(settings=PJRT).serve(layers[0])
    children = hold_compilation(server, model, layers[1])
    if how == signal.SIGTERM:
        model.server.stop()
    else:
        model.server.kill()
    wait_until(lambda: not any(map(runs, children)), "the end of the process")


def test_a_server_compiles_what_hangs_in_a_process(
    start_server: StartServer, tmp_path: Path, plugin: Path, layers: Sequence[Path]
) -> None:
    server = CudaLike(start_server, tmp_path, plugin, accelerator_autotuning_seconds=25)
    model = server.host.model(settings=PJRT).serve(layers[0])
    children = hold_compilation(server, model, layers[1])
    line = model.wait_for_log("programs_left_to_server", version=2)
    assert "more than 25 s" in line["reason"]
    model.wait_until_available(2)
    assert not any(map(is_there, children))
    assert_answers(model, 2)
    assert server.compiled()[:3] == ["server autotuned", "child topology", "server first"]
