"""Versions on an accelerator. Here it is a CPU, by the PJRT plugin that XLA's authors have on PyPI."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import httpx
import ml_dtypes
import numpy as np
import pytest

from loadtest.drive.demo_model import DemoModel, prepare_model
from serving.client import Client
from serving.commands.ctr_model import reference_answer, request_inputs
from serving.core.servable import END
from serving.monitoring.metrics_routes import PATHS
from tests.integration.accelerators import plugin_path
from tests.integration.clients import array, caller_to, predict_request
from tests.integration.conftest import StartServer
from tests.integration.example_exports import example
from tests.integration.exports import drop, let_settle
from tests.integration.kept_exports import exported_by, kept_export, kept_jax_exports, kept_programs
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.odd_exports import save
from tests.integration.processes import millpond

TABLE_ROWS = 500
X = np.array([1, 4], np.float32)
NOISE = 0.544110119342804  # TensorFlow draws it on the CPU from the seed [1, 2]
ROW_COUNTS = (1, 2, 4, 5, 8, 9, 16, 33)
# With "auto" the CPU, which is the same one, takes the runs for which it is faster.
THERE = {"platform": "pjrt"}


LOOKED_UP_ROWS = 20
WORDS = (b"apple", b"pear", b"plum")


def looked_up_answer(ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The answer of the model `looked_up`, whose table and weights count upwards."""
    table = np.arange(LOOKED_UP_ROWS * 4, dtype=np.float32).reshape(-1, 4) / 100
    weights = np.arange(8 * 3, dtype=np.float32).reshape(8, 3) / 10
    answer: np.ndarray[Any, Any] = table[ids].reshape(-1, 8) @ weights
    return answer


# The dtypes that XLA takes, by the names of inputs, and the shapes of their rows: most rows are no
# whole number of words.
DTYPES = {
    np.dtype(dtype).name: np.dtype(dtype)
    for dtype in (
        *(np.bool_, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64),
        *(np.uint8, np.uint16, np.uint32, np.uint64, ml_dtypes.bfloat16),
    )
}
ROW_SHAPES = {
    name: ((1,), (3,), (5, 1), (2, 3), (1, 7))[index % 5] for index, name in enumerate(DTYPES)
}


def random_bits(
    random: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    """Elements of all values of a dtype; of most, NaNs with any payload are among them."""
    if dtype == np.bool_:
        return random.random(shape) < 0.5
    size = int(np.prod(shape)) * dtype.itemsize
    content = random.bytes(size)
    if dtype == ml_dtypes.bfloat16:
        # XLA's CPU joins bfloat16 as float32, which loses the payload of a NaN.
        without_nan = np.frombuffer(content, np.uint16) & 0xFF7F
        return without_nan.view(dtype).reshape(shape)
    return np.frombuffer(content, dtype).reshape(shape)


@pytest.fixture(scope="module")
def cache() -> Path:
    """The programs of the module's servers. Tests that are about the compilation itself have caches of their own."""
    return kept_programs("accelerator")


@pytest.fixture(scope="module")
def host_flags(cache: Path) -> Mapping[str, object]:
    return {
        "accelerator": f"pjrt:{plugin_path()}",
        "accelerator_rows": "1,4,8",
        "accelerator_cache_directory": cache,
        "admin_on_data_port": True,
    }


@pytest.fixture(scope="module")
def ctr() -> Mapping[int, Path]:
    """Versions 1 and 2 of the CTR model, with small tables."""

    def make(directory: Path) -> None:
        prepare_model(directory, TABLE_ROWS, print)

    sources = ("serving/commands", "loadtest/drive/demo_model.py")
    model = DemoModel.below(kept_export("ctr_accelerator", make, sources), TABLE_ROWS)
    return {1: model.base_path / "1", 2: model.staged / "2"}


def assert_answers_of(model: HostedModel, version: int, export: int) -> None:
    """Fails unless `version` answers as version `export` of the CTR model does, at any number of rows."""
    with caller_to(model.server.target) as caller:
        for rows in ROW_COUNTS:
            inputs = request_inputs(rows, rows, TABLE_ROWS)
            response = caller.predict(predict_request(model.name, inputs))
            assert response.model_spec.version.value == version
            answer = array(response.outputs["ctr"])
            assert answer == pytest.approx(reference_answer(export, inputs, TABLE_ROWS), abs=1e-5)
            assert array(response.outputs["version"]).tolist() == [export] * rows


def test_answers_are_those_of_the_reference(host: ModelHost, ctr: Mapping[int, Path]) -> None:
    model = host.model(prefix="ctr", settings=THERE).serve(ctr[1])
    model.wait_for_log("signature_on_accelerator", version=1, rows=[1, 4, 8])
    assert_answers_of(model, 1, 1)


def test_runs_are_counted_where_they_ran(host: ModelHost, ctr: Mapping[int, Path]) -> None:
    model = host.model(prefix="ctr", settings=THERE).serve(ctr[1])
    before = runs_of(model)
    with caller_to(model.server.target) as caller:
        for rows in (1, 3, 9):
            caller.predict(predict_request(model.name, request_inputs(rows, rows, TABLE_ROWS)))
    after = runs_of(model)
    # 9 rows are a run of 8 and a run of 1.
    counted = ("run_count", 4), ("row_count", 13), ("padding_row_count", 1)
    for name, count in counted:
        assert after[name] - before[name] == count
    assert set(after["cpu_run_counts"].values()) == {0}
    metrics = httpx.get(f"{model.server.url}{PATHS[0]}").text
    # The plugin has several devices.
    device = runs_on_devices(model)[0]["device"]
    labels = (
        f'device="{device}",model="{model.name}",rows="8",signature="serving_default",version="1"'
    )
    assert f"serving_accelerator_runs_total{{{labels}}}" in metrics


def test_auto_runs_where_it_measured_to_be_faster(host: ModelHost, ctr: Mapping[int, Path]) -> None:
    model = host.model(prefix="ctr").serve(ctr[1])
    line = model.wait_for_log("sides_chosen", version=1, signature="serving_default")
    assert line["rows"] == [1, 4, 8]
    faster = [
        cpu <= there for cpu, there in zip(line["cpu_us"], line["accelerator_us"], strict=True)
    ]
    with Client(model.server.target) as client:
        (version,) = client.describe_models()[model.name]["versions"]
    sizes = version["accelerator_signatures"][0]["sizes"]
    assert [size["is_on_accelerator"] for size in sizes] == [
        size["rows"] not in line["rows_on_cpu"] for size in sizes
    ]
    on_cpu = [rows for rows, is_faster in zip(line["rows"], faster, strict=True) if is_faster]
    # The log has whole microseconds.
    assert set(line["rows_on_cpu"]) <= set(on_cpu)
    before = runs_of(model)
    assert_answers_of(model, 1, 1)
    after = runs_of(model)
    counts = [runs["cpu_run_counts"]["faster"] for runs in (before, after)]
    assert counts[1] - counts[0] == sum(
        not next((size for size in sizes if size["rows"] >= rows), sizes[-1])["is_on_accelerator"]
        for rows in ROW_COUNTS
    )
    metrics = httpx.get(f"{model.server.url}{PATHS[0]}").text
    assert f'serving_accelerator_median_seconds{{model="{model.name}",rows="8"' in metrics


def runs_of(model: HostedModel) -> Mapping[str, Any]:
    """The runs of serving_default, as `millpond status` gets them."""
    (runs,) = runs_on_devices(model)
    return runs


def runs_on_devices(model: HostedModel) -> Sequence[Mapping[str, Any]]:
    """The runs of serving_default on each device of the model's highest version."""
    with Client(model.server.target) as client:
        versions = client.describe_models()[model.name]["versions"]
    version = max(
        (item for item in versions if item.get("accelerator_bytes")),
        key=lambda item: int(item["version"]),
    )
    assert version["accelerator_bytes"] > TABLE_ROWS
    runs = version["accelerator"]
    assert isinstance(runs, list)
    return runs


def devices_of(model: HostedModel) -> list[str]:
    return [str(runs["device"]) for runs in runs_on_devices(model)]


def test_models_are_on_different_devices(host: ModelHost, ctr: Mapping[int, Path]) -> None:
    models = [
        host.model(prefix="ctr", settings={**THERE, "accelerator_devices": [2, 3]}).serve(ctr[1])
        for _ in range(2)
    ]
    assert sorted(device for model in models for device in devices_of(model)) == ["2", "3"]
    for model in models:
        assert_answers_of(model, 1, 1)
        before = devices_of(model)
        model.serve(ctr[2], 2)
        model.wait_until_available(2)
        assert devices_of(model) == before
        assert_answers_of(model, 2, 2)


def test_replicas_share_the_requests(host: ModelHost, ctr: Mapping[int, Path]) -> None:
    model = host.model(prefix="ctr", settings={**THERE, "accelerator_replicas": 0}).serve(ctr[1])
    assert devices_of(model) == ["0", "1", "2", "3"]
    before = [runs["run_count"] for runs in runs_on_devices(model)]
    assert_answers_of(model, 1, 1)
    after = [runs["run_count"] for runs in runs_on_devices(model)]
    assert all(now > then for now, then in zip(after, before, strict=True))


def test_a_swap_loses_no_request(host: ModelHost, ctr: Mapping[int, Path]) -> None:
    model = host.model(prefix="ctr", settings=THERE).serve(ctr[1])
    is_over = threading.Event()
    versions: list[int] = []

    def ask() -> None:
        with caller_to(model.server.target) as caller:
            while not is_over.is_set():
                inputs = request_inputs(len(versions), 3, TABLE_ROWS)
                response = caller.predict(predict_request(model.name, inputs))
                version = response.model_spec.version.value
                expected = reference_answer(version, inputs, TABLE_ROWS)
                assert array(response.outputs["ctr"]) == pytest.approx(expected, abs=1e-5)
                versions.append(version)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        model.serve(ctr[2], 2)
        model.wait_until_available(2)
        seen = len(versions)
        while asking.is_alive() and len(versions) < seen + 20:
            is_over.wait(0.01)
    finally:
        is_over.set()
        asking.join()
    assert set(versions) == {1, 2}
    assert versions == sorted(versions)
    assert len(versions) >= seen + 20, "a request failed"


def test_a_version_of_a_known_graph_is_not_compiled(
    host: ModelHost, ctr: Mapping[int, Path], cache: Path
) -> None:
    model = host.model(prefix="ctr", settings=THERE).serve(ctr[1])
    programs = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert len(programs) >= 3
    before = programs_of(model)
    model.serve(ctr[1], 2)
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == programs
    assert_answers_of(model, 2, 1)
    shared = programs_of(model)["shared"]
    assert shared >= before["shared"] + 3
    assert programs_of(model) == {**before, "shared": shared}, "the driver loads no program"


def programs_of(model: HostedModel) -> Mapping[str, float]:
    """The programs of the server's loads, by their source, on all devices."""
    counts = {"compiled": 0.0, "cache": 0.0, "shared": 0.0}
    for line in httpx.get(f"{model.server.url}{PATHS[0]}").text.splitlines():
        if line.startswith("serving_accelerator_programs_total{"):
            labels, value = line.rsplit(" ", 1)
            source = next(name for name in counts if f'source="{name}"' in labels)
            counts[source] += float(value)
    return counts


def test_a_cache_that_was_filled_ahead_is_enough(
    ctr: Mapping[int, Path], tmp_path: Path, start_server: StartServer
) -> None:
    cache, plugin = tmp_path / "programs", f"pjrt:{plugin_path()}"
    flags = (f"--accelerator={plugin}", "--rows=1,4,8", f"--cache={cache}")
    compiled = millpond("compile", ctr[1], *flags)
    assert compiled.returncode == 0, compiled.stderr
    assert "serving_default: whole: 1, 4, 8 rows" in compiled.stdout
    assert "3 programs compiled for xla_cpu_pjrt.so" in compiled.stdout
    assert "0 programs compiled" in millpond("compile", ctr[1], *flags).stdout
    host = ModelHost(
        start_server,
        tmp_path,
        accelerator=plugin,
        accelerator_rows="1,4,8",
        accelerator_cache_directory=cache,
    )
    model = host.model(prefix="ctr").serve(ctr[1])
    assert_answers_of(model, 1, 1)
    assert programs_of(model) == {"compiled": 0, "cache": 3, "shared": 0}


def test_a_cache_that_takes_no_file_is_an_error(ctr: Mapping[int, Path]) -> None:
    # The process owns this directory, and not even root can make a file in it.
    flags = (f"--accelerator=pjrt:{plugin_path()}", "--rows=1", "--cache=/proc/self/task")
    refused = millpond("compile", ctr[1], *flags)
    assert refused.returncode != 0
    assert "cannot be written" in refused.stdout + refused.stderr


def test_a_look_ahead_names_what_stays_on_the_cpu(strings: Path) -> None:
    looked = millpond("compile", strings, "--dry-run")
    assert looked.returncode == 0, looked.stderr
    assert ": CPU: " in looked.stdout


def test_a_plugin_without_topologies_says_what_to_do(
    ctr: Mapping[int, Path], tmp_path: Path
) -> None:
    plugin, cache = f"--accelerator=pjrt:{plugin_path()}", f"--cache={tmp_path}"
    refused = millpond("compile", ctr[1], plugin, "--topology=h100", cache)
    assert refused.returncode == 1
    assert "leave the topology out" in refused.stderr


def test_a_model_of_strings_stays_on_the_cpu(host: ModelHost, strings: Path) -> None:
    model = host.model(prefix="strings").serve(strings)
    line = model.wait_for_log("signature_on_cpu", version=1, signature="serving_default")
    assert "StringLength" in line["reason"]
    with caller_to(model.server.target) as caller:
        texts = np.array(["a", "bc"], dtype=object)
        response = caller.predict(predict_request(model.name, {"text": texts}))
        assert array(response.outputs["size"]).tolist() == [1, 2]


def test_a_check_of_a_request_is_kept(host: ModelHost, checked: Path) -> None:
    model = host.model(prefix="checked", settings=THERE).serve(checked)
    model.wait_for_log("signature_on_cpu", version=1, signature="finite")
    line = model.wait_for_log("signature_on_accelerator", version=1, signature="positive")
    assert "If" in line["cpu_ops"]
    with caller_to(model.server.target) as caller:
        for signature, message in (("positive", "x is not positive"), ("finite", "NaN")):
            request = predict_request(model.name, {"x": X}, signature_name=signature)
            assert array(caller.predict(request).outputs["y"]).tolist() == [1, 2]
            request = predict_request(model.name, {"x": -X}, signature_name=signature)
            with pytest.raises(grpc.RpcError, match=message) as refused:
                caller.predict(request)
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_numbers_that_a_graph_draws_are_the_cpus(host: ModelHost, drawn: Path) -> None:
    model = host.model(prefix="drawn", settings=THERE).serve(drawn)
    model.wait_for_log("signature_on_accelerator", version=1, signature="serving_default")
    with caller_to(model.server.target) as caller:
        for signature in ("noise", "noise_in_loop"):
            line = model.wait_for_log("signature_on_cpu", version=1, signature=signature)
            assert "draws other numbers in XLA" in line["reason"]
            request = predict_request(model.name, {"x": X}, signature_name=signature)
            noise = array(caller.predict(request).outputs["y"]) - X
            assert noise == pytest.approx(NOISE, abs=1e-6)


def test_integers_that_xla_computes_otherwise(host: ModelHost, integers: Path) -> None:
    model = host.model(prefix="integers", settings=THERE).serve(integers)
    for signature, cpu_ops in (("serving_default", []), ("nearest", ["ResizeNearestNeighbor"])):
        line = model.wait_for_log("signature_on_accelerator", version=1, signature=signature)
        assert line["cpu_ops"] == cpu_ops
    for signature, op in (("shift", "LeftShift"), ("mean", "Mean")):
        line = model.wait_for_log("signature_on_cpu", version=1, signature=signature)
        assert op in line["reason"]
    largest = np.iinfo(np.int32).max
    x = np.array([[1, 33], [-7, -1], [largest, largest - 4]], np.int32)
    answers = {
        # A CPU shifts by 0 to 31 bits.
        "shift": np.array([[2, -(2**31)], [-7, -1], [-(2**31), -(2**31)]]),
        "mean": np.array([17, -4, largest - 2]),
        "nearest": np.repeat(x, 2, 1),
        "serving_default": np.stack([x[:, 0] << 1, x[:, 1] >> 4], 1),
    }
    with caller_to(model.server.target) as caller:
        for signature, expected in answers.items():
            answer = caller.outputs(model.name, {"x": x}, signature_name=signature)["y"]
            assert answer.tolist() == expected.tolist(), signature


def test_random_graphs_answer_as_tensorflow_does(
    start_server: StartServer,
    tmp_path: Path,
    host_flags: Mapping[str, object],
    random_graphs: Path,
) -> None:
    # Two sizes are enough to fill runs up and to split them, and each takes seconds to compile.
    host = ModelHost(start_server, tmp_path, **{**host_flags, "accelerator_rows": "1,4"})
    model = host.model(prefix="random", settings=THERE)
    model.serve(random_graphs / "1")
    answers = np.load(random_graphs / "answers.npz")
    wanted = {name: array for name, array in answers.items() if "/out/" in name}
    with caller_to(model.server.target) as caller:
        for signature, rows in sorted({tuple(name.split("/")[:2]) for name in wanted}):
            begin = f"{signature}/{rows}/in/"
            inputs = {
                name.removeprefix(begin): array.astype(object) if array.dtype.kind == "U" else array
                for name, array in answers.items()
                if name.startswith(begin)
            }
            response = caller.predict(predict_request(model.name, inputs, signature_name=signature))
            for name, tensor in response.outputs.items():
                expected = wanted.pop(f"{signature}/{rows}/out/{name}")
                answer = array(tensor)
                if answer.dtype == object:
                    assert [text.decode() for text in answer] == expected.tolist()
                else:
                    assert answer == pytest.approx(expected, abs=1e-5), (signature, rows, name)
    assert not wanted
    split = [line for line in model.logged("signature_on_accelerator") if line["cpu_ops"]]
    assert len(split) >= 8


def test_an_index_beyond_a_table_is_refused(host: ModelHost, looked_up: Path) -> None:
    model = host.model(prefix="looked_up", settings=THERE).serve(looked_up)
    assert not model.wait_for_log("signature_on_accelerator", version=1)["cpu_ops"]
    ids = np.array([[0, 1], [2, 3], [LOOKED_UP_ROWS - 1, 0]])
    with caller_to(model.server.target) as caller:
        answer = array(caller.predict(predict_request(model.name, {"ids": ids})).outputs["y"])
        assert answer == pytest.approx(looked_up_answer(ids), abs=1e-5)
        for wrong in (-1, LOOKED_UP_ROWS):
            ids[1, 1] = wrong
            with pytest.raises(grpc.RpcError, match=f"{wrong} is not in") as refused:
                caller.predict(predict_request(model.name, {"ids": ids}))
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_all_dtypes_cross_bit_by_bit(host: ModelHost, doubled: Path) -> None:
    """Inputs and outputs of all dtypes and sizes share one block each way, filled up or not."""
    model = host.model(prefix="doubled", settings=THERE).serve(doubled)
    assert not model.wait_for_log("signature_on_accelerator", version=1)["cpu_ops"]
    random = np.random.default_rng(1)
    with caller_to(model.server.target) as caller:
        for rows in ROW_COUNTS:
            inputs = {
                name: random_bits(random, dtype, (rows, *ROW_SHAPES[name]))
                for name, dtype in DTYPES.items()
            }
            outputs = caller.predict(predict_request(model.name, inputs)).outputs
            assert outputs.keys() == inputs.keys()
            for name, sent in inputs.items():
                answer = array(outputs[name])
                assert answer.dtype == sent.dtype
                assert answer.tobytes() == np.concatenate([sent, sent], 1).tobytes(), name
    lines = httpx.get(f"{model.server.url}{PATHS[0]}").text.splitlines()
    counts = [line for line in lines if line.startswith("serving_accelerator_rows_total")]
    own = [line for line in counts if f'model="{model.name}"' in line]
    assert sum(float(line.rpartition(" ")[2]) for line in own) == sum(ROW_COUNTS)


def test_examples_are_parsed_on_the_cpu(host: ModelHost, parsed: Path) -> None:
    model = host.model(prefix="parsed", settings=THERE).serve(parsed)
    line = model.wait_for_log("signature_on_accelerator", version=1)
    assert line["cpu_ops"] == ["LookupTableFindV2", "ParseExampleV2"]
    features = [
        (1.5, b"pear"),
        (-2.0, b"plum"),
        (0.25, b"unknown"),
        (3.0, b"apple"),
        (0.0, b"pear"),
    ]
    examples = [example(x=x, word=word).SerializeToString() for x, word in features]
    places = [WORDS.index(word) if word in WORDS else len(WORDS) for _, word in features]
    rows = np.stack(
        [np.eye(len(WORDS) + 1)[place] * x for (x, _), place in zip(features, places, strict=True)]
    )
    with caller_to(model.server.target) as caller:
        inputs = {"examples": np.array(examples, dtype=object)}
        answer = array(caller.predict(predict_request(model.name, inputs)).outputs["y"])
        assert answer == pytest.approx(rows @ np.arange(8).reshape(4, 2), abs=1e-5)


@pytest.mark.parametrize(("tables", "is_on_cpu"), [("device", False), ("host", True)])
def test_the_tables_are_where_the_settings_say(
    host: ModelHost, ctr: Mapping[int, Path], tables: str, is_on_cpu: bool
) -> None:
    model = host.model(prefix="ctr", settings={**THERE, "accelerator_tables": tables}).serve(ctr[1])
    line = model.wait_for_log("signature_on_accelerator", version=1)
    assert len(line["cpu_tables"]) == (26 if is_on_cpu else 0)
    assert ("ResourceGather" in line["cpu_ops"]) == is_on_cpu
    assert_answers_of(model, 1, 1)


def test_a_module_of_jax_runs_on_the_accelerator(host: ModelHost) -> None:
    model = host.model(prefix="jax", settings=THERE)
    model.serve(kept_jax_exports() / "layers")
    assert not model.wait_for_log("signature_on_accelerator", version=1)["cpu_ops"]
    first = np.arange(32, dtype=np.float32).reshape(4, 8) / 50
    second = np.arange(16, dtype=np.float32).reshape(8, 2) / 20
    with caller_to(model.server.target) as caller:
        for rows in ROW_COUNTS:
            x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
            answer = array(
                caller.predict(predict_request(model.name, {"x": x})).outputs["output_0"]
            )
            assert answer == pytest.approx(np.tanh(x @ first) @ second, abs=1e-5)


def test_a_model_that_needs_the_accelerator_is_refused(host: ModelHost, strings: Path) -> None:
    model = host.model(prefix="strings", settings=THERE)
    drop(strings, model.base_path, 1)
    model.wait_for_states({1: END})
    line = model.wait_for_log("load_failed", version=1)
    assert 'set platform = "auto"' in str(line)


def test_a_quota_that_is_too_small_leaves_the_cpu(host: ModelHost, ctr: Mapping[int, Path]) -> None:
    model = host.model(prefix="ctr", settings={"accelerator_memory_bytes": 1_000}).serve(ctr[1])
    line = model.wait_for_log("accelerator_full", version=1)
    assert "accelerator_memory_bytes" in line["reason"]
    assert_answers_of(model, 1, 1)
    with Client(model.server.target) as client:
        (version,) = client.describe_models()[model.name]["versions"]
    (runs,) = version["accelerator"]
    assert runs["cpu_run_counts"]["away"] >= len(ROW_COUNTS)
    assert runs["run_count"] == 0


def test_another_process_compiles_beside_requests(
    start_server: StartServer, tmp_path: Path, ctr: Mapping[int, Path], looked_up: Path
) -> None:
    flags = {"accelerator": f"pjrt:{plugin_path()}", "accelerator_rows": "1,4"}
    host = ModelHost(start_server, tmp_path, **flags, admin_on_data_port=True)
    host.model(prefix="ctr", settings=THERE).serve(ctr[1])
    model = host.model(prefix="looked_up", settings=THERE)
    before = programs_of(model)
    model.serve(looked_up)
    assert programs_of(model)["compiled"] == before["compiled"], "the server compiles nothing"
    assert programs_of(model)["cache"] == before["cache"] + 2
    assert model.wait_for_log("programs_compiled", version=1)["programs"] == 2


def test_a_needed_accelerator_without_room_refuses(
    host: ModelHost, ctr: Mapping[int, Path]
) -> None:
    settings = {**THERE, "accelerator_memory_bytes": 1_000}
    model = host.model(prefix="ctr", settings=settings)
    drop(ctr[1], model.base_path, 1)
    model.wait_for_states({1: END})
    line = model.wait_for_log("load_failed", version=1)
    assert "accelerator_memory_bytes" in str(line)


def test_a_missing_plugin_ends_the_start(tmp_path: Path) -> None:
    ended = millpond(
        "serve",
        "--port=0",
        f"--model_base_path={tmp_path}",
        "--accelerator=pjrt:/nowhere/plugin.so",
    )
    assert ended.returncode != 0
    assert "/nowhere/plugin.so" in ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three signatures with the root of x; `positive` and `finite` fail for a negative one."""
    import tensorflow as tf

    def positive(x: Any) -> Any:
        tf.debugging.assert_positive(x, message="x is not positive")
        return {"y": tf.sqrt(x)}

    signatures = {
        "positive": positive,
        "finite": lambda x: {"y": tf.debugging.check_numerics(tf.sqrt(x), "root")},
        "serving_default": lambda x: {"y": tf.sqrt(x)},
    }
    return save(tmp_path_factory.mktemp("checked") / "1", tf.Module(), signatures)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three signatures: x, and a number that its seed determines, at once or in a loop."""
    import tensorflow as tf

    def noise() -> Any:
        return tf.random.stateless_normal([], [1, 2])

    def noise_in_loop(x: Any) -> Any:
        def body(turn: Any, value: Any) -> Any:
            return turn + 1, value + noise() / 4

        return tf.while_loop(lambda turn, value: turn < 4, body, (0, x))[1]

    signatures = {
        "noise": lambda x: {"y": x + noise()},
        "noise_in_loop": lambda x: {"y": noise_in_loop(x)},
        "serving_default": lambda x: {"y": tf.sqrt(x)},
    }
    return save(tmp_path_factory.mktemp("drawn") / "1", tf.Module(), signatures)


@pytest.fixture(scope="module")
def integers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three signatures of int32[?, 2] that XLA computes otherwise, and shifts by numbers of bits that it can."""
    import tensorflow as tf

    def nearest(x: Any) -> Any:
        image = x[:, tf.newaxis, :, tf.newaxis]
        return tf.reshape(tf.raw_ops.ResizeNearestNeighbor(images=image, size=[1, 4]), [-1, 4])

    def shifted(x: Any) -> Any:
        few = tf.cast(tf.constant(4, tf.uint8), tf.int32)
        return tf.stack(
            [tf.bitwise.left_shift(x[:, 0], 1), tf.bitwise.right_shift(x[:, 1], few)], 1
        )

    signatures = {
        "shift": lambda x: {"y": tf.bitwise.left_shift(x, x)},
        "mean": lambda x: {"y": tf.reduce_mean(x, 1)},
        "nearest": lambda x: {"y": nearest(x)},
        "serving_default": lambda x: {"y": shifted(x)},
    }
    spec = tf.TensorSpec([None, 2], tf.int32, "x")
    return save(tmp_path_factory.mktemp("integers") / "1", tf.Module(), signatures, x=spec)


@pytest.fixture(scope="module")
def random_graphs() -> Path:
    """The SavedModel and the answers of split_models.py."""
    exporter = exported_by("tests.integration.split_models")
    return kept_export("split", exporter, ("tests/integration/split_models.py",))


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Examples of a number and a word: the word's place in a vocabulary, times the number, and a layer."""
    import tensorflow as tf

    keys = tf.lookup.KeyValueTensorInitializer(
        list(WORDS), list(range(len(WORDS))), key_dtype=tf.string, value_dtype=tf.int64
    )
    module = tf.Module()
    module.words = tf.lookup.StaticHashTable(keys, default_value=len(WORDS))
    module.weights = tf.Variable(tf.reshape(tf.range(8.0), [4, 2]))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "examples")])
    def serve(examples: Any) -> Any:
        kinds = {
            "x": tf.io.FixedLenFeature([], tf.float32),
            "word": tf.io.FixedLenFeature([], tf.string),
        }
        features = tf.io.parse_example(examples, kinds)
        places = tf.one_hot(module.words.lookup(features["word"]), len(WORDS) + 1)
        return {"y": tf.matmul(places * features["x"][:, tf.newaxis], module.weights)}

    directory = tmp_path_factory.mktemp("parsed") / "1"
    tf.saved_model.save(module, str(directory), signatures=serve)
    return let_settle(directory)


@pytest.fixture(scope="module")
def looked_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A look-up of two ids a row, which nothing bounds, and a layer behind it."""
    import tensorflow as tf

    module = tf.Module()
    module.table = tf.Variable(tf.reshape(tf.range(LOOKED_UP_ROWS * 4.0) / 100, [-1, 4]))
    module.weights = tf.Variable(tf.reshape(tf.range(24.0) / 10, [8, 3]))

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.int64, "ids")])
    def serve(ids: Any) -> Any:
        rows = tf.reshape(tf.gather(module.table, ids), [-1, 8])
        return {"y": tf.matmul(rows, module.weights)}

    directory = tmp_path_factory.mktemp("looked_up") / "1"
    tf.saved_model.save(module, str(directory), signatures=serve)
    return let_settle(directory)


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each input twice, beside itself."""
    import tensorflow as tf

    specs = {
        name: tf.TensorSpec([None, *ROW_SHAPES[name]], dtype.type, name)
        for name, dtype in DTYPES.items()
    }

    @tf.function(input_signature=[specs])
    def serve(inputs: Mapping[str, Any]) -> Any:
        return {name: tf.concat([value, value], 1) for name, value in inputs.items()}

    directory = tmp_path_factory.mktemp("doubled") / "1"
    tf.saved_model.save(tf.Module(), str(directory), signatures=serve)
    return let_settle(directory)


@pytest.fixture(scope="module")
def strings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import tensorflow as tf

    class Sizes(tf.Module):  # type: ignore[misc]
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
        def serve(self, text: Any) -> dict[str, Any]:
            return {"size": tf.strings.length(text)}

    directory = tmp_path_factory.mktemp("strings") / "1"
    module = Sizes()
    tf.saved_model.save(module, str(directory), signatures=module.serve)
    return let_settle(directory)
