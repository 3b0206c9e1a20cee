from collections.abc import Sequence
from pathlib import Path

import pytest

from serving.base.errors import StatusCode
from serving.config.server_config import ServerConfig
from serving.core.model_config import ModelConfig
from serving.loading.memory_fit import UNLIMITED_BYTES
from serving.rpc.request_memory import (
    MemoryBusy,
    MemoryHold,
    RequestMemoryLimits,
    request_memory_limits,
)
from tests.unit.fakes.requests import FakeByteBudget

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


def test_hold_returns_its_bytes_once() -> None:
    budget = FakeByteBudget(100)
    hold = MemoryHold(budget)
    hold.grow(60)
    hold.grow(40)
    assert budget.in_use_bytes == 100
    hold.release()
    hold.release()
    assert budget.in_use_bytes == 0


def test_hold_refuses_too_many_bytes() -> None:
    budget = FakeByteBudget(100)
    other = MemoryHold(budget)
    other.grow(90)
    hold = MemoryHold(budget)
    with pytest.raises(MemoryBusy, match="--request_memory_bytes") as refused:
        hold.grow(11)
    assert refused.value.code is StatusCode.RESOURCE_EXHAUSTED
    hold.release()
    assert (budget.in_use_bytes, budget.refused_count) == (90, 1)


def test_refusal_of_more_than_the_budget_has_a_remedy() -> None:
    hold = MemoryHold(FakeByteBudget(100))
    for refused_by in (hold.check_fits, hold.grow):
        with pytest.raises(MemoryBusy, match="raise the flag, or send less") as refused:
            refused_by(101)
        assert "try again later" not in refused.value.message


def test_growing_body_is_refused_at_budget() -> None:
    hold = MemoryHold(FakeByteBudget(100))
    hold.grow(60)
    with pytest.raises(MemoryBusy, match=r"120 bytes.*raise the flag, or send less"):
        hold.grow(60)


def test_an_announcement_holds_nothing() -> None:
    budget = FakeByteBudget(100)
    hold = MemoryHold(budget)
    hold.check_fits(100)
    assert (budget.in_use_bytes, budget.refused_count) == (0, 0)
    with pytest.raises(MemoryBusy):
        hold.check_fits(101)
    assert budget.refused_count == 1


def test_without_a_budget_nothing_is_refused() -> None:
    hold = MemoryHold(None)
    hold.check_fits(2**62)
    hold.grow(2**62)
    hold.release()
