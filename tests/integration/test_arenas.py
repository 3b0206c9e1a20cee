"""Versions in arenas: any kind of model answers right and leaves no memory behind."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving import ModelServer
from serving.base.protos import predict_pb2
from serving.client import Client
from serving.commands.ctr_export import export_ctr_model
from serving.commands.ctr_model import reference_answer, request_inputs
from serving.core.servable import AVAILABLE
from tests.integration import exports
from tests.integration.clients import (
    array,
    predict_request,
    wait_for_states,
)
from tests.integration.conftest import REPOSITORY, StartServer, WriteConfig
from tests.integration.exports import ScaleModel, drop, let_settle, write_warm_up
from tests.integration.logs import logged, wait_for_log
from tests.integration.steady_clients import SteadyClients

MODELS = Path(REPOSITORY, "build", "models")
CTR_TABLE_ROWS = 1_000
TOLERANCE = 1e-5

# 1 MB, far above the amount that a response might copy on its way.
WEIGHT_COUNT = 250_000
ALIASING_SWAP_COUNT = 5

# Less than the headroom of a slab, and more than any other anonymous mapping of a server.
SLAB_BYTES_MIN = 200 * 2**20


@dataclass(frozen=True)
class Asked:
    """A way to export a model, and one request with its answer (None if it is unknown here)."""

    export: Callable[[Path], Path]
    inputs: Mapping[str, Any]
    expected: Mapping[str, Any] | None
    signature_name: str = ""


def _fetched(name: str) -> Callable[[Path], Path]:
    def export(directory: Path) -> Path:
        del directory
        version = MODELS / name / "1"
        if not (version / "saved_model.pb").exists():
            pytest.fail(f"{version} is not there: run `python scripts/fetch_models.py {MODELS}`")
        return version

    return export


def _export_ctr(directory: Path) -> Path:
    directory.mkdir()
    return let_settle(export_ctr_model(directory, 3, table_rows=CTR_TABLE_ROWS, with_warm_up=False))


_CTR_INPUTS = request_inputs(1, 20, CTR_TABLE_ROWS)
_IDS = np.array([0, 7, 399, 400, 999])
_WORD_IDS = np.array([0, 1, 999, 500])
_AUDIO = np.sin(2 * np.pi * 220 * np.arange(43_844) / 22_050).astype(np.float32)
_SOURCE = b"def main():\n    import sys\n    print('hello', file=sys.stderr)\n"

ASKED = {
    "ctr": Asked(
        _export_ctr, _CTR_INPUTS, {"ctr": reference_answer(3, _CTR_INPUTS, CTR_TABLE_ROWS)}
    ),
    "tables": Asked(
        exports.export_tables,
        {"words": np.array([b"word-0", b"word-999", b"nobody"], object)},
        {
            "id": [0, 999, -1],
            "name": [exports.table_word(0), exports.table_word(999), b"?"],
            "count": [0, 999_000, -1],
        },
    ),
    "strings": Asked(
        exports.export_strings,
        {"ids": _WORD_IDS},
        {
            "words": [exports.table_word(number) for number in _WORD_IDS],
            "all": [exports.table_word(number) for number in range(exports.TABLE_WORD_COUNT)],
        },
    ),
    "partitioned": Asked(
        lambda directory: exports.export_partitioned(directory, 3, 3),
        {"ids": _IDS},
        {name: exports.partitioned_rows(_IDS) for name in ("rows", "resource_rows")},
    ),
    "partitioned_anew": Asked(
        lambda directory: exports.export_partitioned(directory, 3, 5),
        {"ids": _IDS},
        {name: exports.partitioned_rows(_IDS) for name in ("rows", "resource_rows")},
    ),
    "constant": Asked(
        exports.export_constant,
        {"ids": _IDS},
        {
            "squares": _IDS.astype(np.float32) ** 2,
            "all": np.arange(exports.CONSTANT_COUNT, dtype=np.float32) ** 2,
        },
    ),
    # Valid only for the first request of a version that has answered nothing else.
    "counter": Asked(exports.export_counter, {"by": np.int64(2)}, {"sum": 2_000_000}),
    "basic_pitch": Asked(
        _fetched("basic_pitch"), {"input_2": _AUDIO[np.newaxis, :, np.newaxis]}, None
    ),
    "guesslang": Asked(
        _fetched("guesslang"), {"content": np.array([_SOURCE], object)}, None, "predict"
    ),
}
REAL_MODELS = ("basic_pitch", "guesslang")
SCALE = "scale"


@dataclass(frozen=True)
class Served:
    """Starts a server of all models of ASKED, and of `scale`. Base paths are empty until a test drops a
    version.
    """

    server: ModelServer
    base_paths: Mapping[str, Path]
    is_sealing: bool


@pytest.fixture(scope="module", params=[False, True], ids=["writable", "sealed"])
def served(
    request: pytest.FixtureRequest,
    start_module_server: StartServer,
    tmp_path_factory: pytest.TempPathFactory,
    write_config: WriteConfig,
) -> Served:
    directory = tmp_path_factory.mktemp("served")
    base_paths = {name: directory / name for name in (*ASKED, SCALE)}
    for base_path in base_paths.values():
        base_path.mkdir()
    server = start_module_server(
        model_config_file=write_config(directory, base_paths),
        arena_seal=request.param,
        # Without self-warm-up a version that no request reached has run nothing at all.
        self_warmup_requests=0,
    )
    return Served(server, base_paths, request.param)


@pytest.fixture(scope="module")
def exported(export_path: Path) -> Callable[[str], Path]:
    """Exports a model of ASKED on the first call."""
    done: dict[str, Path] = {}

    def export(name: str) -> Path:
        if name not in done:
            done[name] = ASKED[name].export(export_path / f"arenas-{name}")
        return done[name]

    return export


def ask(server: ModelServer, name: str) -> dict[str, Any]:
    asked = ASKED[name]
    with Client(server.target) as client:
        prediction = client.predict(name, asked.inputs, signature_name=asked.signature_name)
    return dict(prediction.outputs)


def assert_same(name: str, answer: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for output, wanted in expected.items():
        if np.asarray(wanted).dtype.kind in "SO":
            assert answer[output].tolist() == np.asarray(wanted, object).tolist(), (name, output)
        else:
            np.testing.assert_allclose(
                *(answer[output], wanted), rtol=TOLERANCE, atol=TOLERANCE, err_msg=output
            )


def live_bytes_after(server: ModelServer, name: str, version: int) -> int:
    """Returns the live bytes that the log reports for the arena of an unloaded version."""
    unloaded = wait_for_log(server, "version_unloaded", model=name, version=version)
    live_bytes: int = unloaded["arena_live_bytes"]
    return live_bytes


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.real_model] if name in REAL_MODELS else [])
        for name in ASKED
    ],
)
def test_version_answers_right_and_empties_arena(
    served: Served, exported: Callable[[str], Path], tmp_path: Path, name: str
):
    asked, server, base_path = ASKED[name], served.server, served.base_paths[name]
    with_warm_up = shutil.copytree(exported(name), tmp_path / "with_warm_up")
    write_warm_up(with_warm_up, name, [dict(asked.inputs)] * 2, asked.signature_name)
    drop(exported(name), base_path, 1)
    server.wait_until_available(name, 1)

    drop(exported(name), base_path, 2)
    assert live_bytes_after(server, name, 1) == 0, "after a load alone"
    first_answer = ask(server, name)
    assert_same(name, first_answer, asked.expected or {})

    drop(with_warm_up, base_path, 3)
    assert live_bytes_after(server, name, 2) == 0, "after requests"

    drop(exported(name), base_path, 4)
    assert live_bytes_after(server, name, 3) == 0, "after warm-up"
    assert_same(name, ask(server, name), first_answer)
    assert not logged(server, "arena_leaked", model=name)


def test_models_writing_to_memory_stay_unsealed(served: Served, exported: Callable[[str], Path]):
    if not served.is_sealing:
        pytest.skip("nothing is sealed on this server")
    for name in ("ctr", "tables", "strings", "partitioned", "constant", "counter"):
        drop(exported(name), served.base_paths[name], 100)
        wait_for_log(served.server, "version_available", model=name, version=100)
    unsealed = {event["model"] for event in logged(served.server, "arena_not_sealed", version=100)}
    # The kernel of a table writes to its own tensor, and a kernel that gathers strings frees some of them.
    assert unsealed == {"counter", "tables", "strings"}


def test_model_writing_variables_keeps_counting(served: Served, exported: Callable[[str], Path]):
    drop(exported("counter"), served.base_paths["counter"], 200)
    served.server.wait_until_available("counter", 200)
    with Client(served.server.target) as client:
        sums = [
            client.predict("counter", {"by": np.int64(by)}).outputs["sum"].item()
            for by in (1, 10, -4)
        ]
    assert sums == [1_000_000, 11_000_000, 7_000_000]


# --- Sealed slabs -----------------------------------------------------------------------------------


def sealed_slabs(process_id: int) -> list[tuple[int, int]]:
    """Returns the addresses of read-only anonymous memory that is as large as a slab."""
    slabs: list[tuple[int, int]] = []
    for line in Path(f"/proc/{process_id}/maps").read_text().splitlines():
        addresses, access, _, _, inode, *_ = line.split(maxsplit=5)
        if (access, inode) != ("r--p", "0"):
            continue
        first, last = (int(address, 16) for address in addresses.split("-"))
        # A slab to which memory was moved is several mappings, one after the other.
        if slabs and slabs[-1][1] == first:
            first, _ = slabs.pop()
        slabs.append((first, last))
    return [(first, last) for first, last in slabs if last - first >= SLAB_BYTES_MIN]


def test_sealed_slab_is_writable_for_next_version(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
):
    scale_model.write(base_path, 1, offset_count=WEIGHT_COUNT)
    server = start_server(model_name="scale", base_path=base_path, arena_seal=True)
    slabs = []
    with Client(server.target) as client:
        for version in range(1, 6):
            if version > 1:
                scale_model.write(base_path, version, offset_count=WEIGHT_COUNT)
            wait_for_states(client, "scale", {version: AVAILABLE})
            if version > 1:
                assert live_bytes_after(server, "scale", version - 1) == 0
            (slab,) = sealed_slabs(server.process_id)
            slabs.append(slab)
            answer = client.predict("scale", {"x": np.ones(2, np.float32)})
            assert answer.outputs["y"].tolist() == [2 * version] * 2
    # One slab serves and one is spare, in turns.
    assert slabs[0] != slabs[1]
    assert slabs == [*slabs[:2], *slabs[:2], slabs[0]]


# --- Outputs that share the version's own memory --------------------------------------------------


def _fault_of_weights(response: predict_pb2.PredictResponse) -> str:
    version = response.model_spec.version.value
    offsets = array(response.outputs["offsets"])
    if offsets.shape == (WEIGHT_COUNT,) and bool((offsets == version).all()):
        return ""
    return f"{offsets.shape} of {np.unique(offsets)[:5]} for the weights of version {version}"


def test_aliased_weight_is_of_one_version_in_swaps(served: Served, scale_model: ScaleModel):
    server, base_path = served.server, served.base_paths[SCALE]
    scale_model.write(base_path, 1, offset_count=WEIGHT_COUNT)
    server.wait_until_available(SCALE, 1)
    last = ALIASING_SWAP_COUNT + 1
    request = predict_request(SCALE, {}, signature_name="weights")
    with SteadyClients(server.target, [(request, _fault_of_weights)] * 3).running() as clients:
        clients.wait_for_answers_of(1, 5)
        for version in range(2, last + 1):
            scale_model.write(base_path, version, offset_count=WEIGHT_COUNT)
            clients.wait_for_answers_of(version, 5)
            assert live_bytes_after(server, SCALE, version - 1) == 0
    assert clients.failures == []
    assert set(clients.answer_counts) == set(range(1, last + 1))
    assert not logged(server, "arena_leaked", model=SCALE)
