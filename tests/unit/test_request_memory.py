from collections.abc import Sequence
from pathlib import Path

import pytest

from serving.config.server_config import ServerConfig
from serving.core.model_config import ModelConfig
from serving.loading.memory_fit import UNLIMITED_BYTES
from serving.rpc.request_memory import RequestMemoryLimits, request_memory_limits

GIB = 2**30
MIB = 2**20


def config(**changes: int) -> ServerConfig:
    models = (ModelConfig(name="m", base_path=str(Path("/m"))),)
    return ServerConfig(models=models, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "available_bytes", "expected"),
    [
        ({}, 8 * GIB, (2 * GIB, GIB, 2 * GIB, GIB, GIB // 4)),
        ({}, UNLIMITED_BYTES, (UNLIMITED_BYTES,) * 3 + (GIB, GIB // 4)),
        ({}, 150 * MIB, (128 * MIB, 256 * MIB, 512 * MIB, GIB, GIB // 4)),
        ({}, 0, (128 * MIB, 256 * MIB, 512 * MIB, GIB, GIB // 4)),
        ({"max_request_bytes": 2**30}, 0, (2 * GIB, GIB, 2 * GIB, GIB, GIB // 4)),
        ({"request_memory_bytes": 1_000}, 8 * GIB, (1_000, 500, 2 * GIB, GIB, GIB // 4)),
        ({"run_memory_bytes": 7}, 8 * GIB, (2 * GIB, 7, 2 * GIB, GIB, GIB // 4)),
        ({"run_memory_bytes": 3 * GIB}, 8 * GIB, (2 * GIB, 3 * GIB, 6 * GIB, GIB, GIB // 4)),
        ({"max_reply_bytes": 9}, 8 * GIB, (2 * GIB, GIB, 2 * GIB, 9, 9)),
    ],
)
def test_flags_decide_and_the_machine_does_the_rest(
    changes: dict[str, int], available_bytes: int, expected: Sequence[int]
) -> None:
    names = (
        "budget_bytes",
        "run_bytes",
        "all_runs_bytes",
        "grpc_reply_bytes_max",
        "rest_reply_bytes_max",
    )
    limits = request_memory_limits(config(**changes), available_bytes)
    assert limits == RequestMemoryLimits(**dict(zip(names, expected, strict=True)))
