"""A cold rollback waits for the version that answers next, or gives the reason why none will."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.errors import FailedPrecondition, NotFound
from serving.client.operator_calls import (
    ROLLBACK_POLL_SECONDS,
    OperatorCalls,
    coming_versions,
    replacement_of,
)
from serving.commands.status import roles
from tests.unit.fakes.clocks import FakeClock

AVAILABLE, LOADING, END = "AVAILABLE", "LOADING", "END"


def version(number: int, state: str, error: str = "", *, error_code: int = 9) -> dict[str, Any]:
    return {
        "version": number,
        "state": state,
        "error_message": error,
        "error_code": error_code if error else 0,
        "failed_load_count": 1 if error else 0,
    }


def model(*versions: dict[str, Any], default: int | None, **rest: Any) -> dict[str, Any]:
    """Returns a model whose version 8 was rolled back."""
    return {
        "name": "ctr",
        "default_version": default,
        "blocked": [8],
        "blocked_versions": [{"version": 8, "by": "operator"}],
        "found_versions": [7, 8],
        "versions": list(versions),
        **rest,
    }


SERVES_ON = version(8, AVAILABLE)


@pytest.mark.parametrize(
    "waiting",
    [
        # The source has not reacted yet.
        model(SERVES_ON, default=8),
        model(version(7, END), SERVES_ON, default=8),
        model(version(7, LOADING), SERVES_ON, default=8),
        # A load that failed once is tried again.
        model(version(7, LOADING, "disk"), SERVES_ON, default=8),
        # An earlier life of the version was cancelled.
        model(version(7, END, "no longer aspired", error_code=1), SERVES_ON, default=8),
        # The policy unloads the old version first.
        model(version(7, LOADING), version(8, END), default=None),
    ],
)
def test_rollback_waits_while_a_version_may_come(waiting: dict[str, Any]):
    assert replacement_of(waiting, 8) is None
    assert coming_versions(waiting) == [7]


@pytest.mark.parametrize("number", [7, 9])
def test_rollback_ends_with_the_version_that_answers(number: int):
    replaced = model(version(number, AVAILABLE), version(8, "UNLOADING"), default=number)
    assert replacement_of(replaced, 8) == number


@pytest.mark.parametrize(
    ("hopeless", "words"),
    [
        (
            model(version(7, END, "torn file"), SERVES_ON, default=8),
            ["8 serves on", "7: torn file"],
        ),
        (model(version(7, END, "torn file"), default=None), ["no version serves", "torn file"]),
        (model(SERVES_ON, default=8, found_versions=[8]), ["no other version could be loaded"]),
        (model(SERVES_ON, default=8, found_versions=[7, 8], blocked=[7, 8]), ["8 serves on"]),
        (model(SERVES_ON, default=8, blocked=[]), ["its rollback was undone"]),
    ],
)
def test_rollback_without_hope_names_the_reason(hopeless: dict[str, Any], words: list[str]):
    with pytest.raises(FailedPrecondition) as raised:
        replacement_of(hopeless, 8)
    for word in words:
        assert word in raised.value.message


VERSIONS = st.lists(
    st.builds(
        version,
        st.integers(6, 10),
        st.sampled_from(["START", LOADING, AVAILABLE, "UNLOADING", END]),
        st.sampled_from(["", "torn file"]),
    ),
    unique_by=lambda row: row["version"],
)


@given(VERSIONS, st.sets(st.integers(6, 10)), st.sets(st.integers(6, 10)), st.data())
def test_rollback_ends_with_an_unblocked_version(
    versions: list[dict[str, Any]], found: set[int], blocked: set[int], data: st.DataObject
):
    ready = [row["version"] for row in versions if row["state"] == AVAILABLE]
    default = data.draw(st.sampled_from([None, *ready]))
    state = model(*versions, default=default, found_versions=found, blocked=blocked | {8})
    try:
        answering = replacement_of(state, 8)
    except FailedPrecondition:
        assert not coming_versions(state)
        return
    assert answering in (None, default)
    assert answering not in blocked | {8}


class Questions(OperatorCalls):
    """Answers each question with the next of `models`."""

    def __init__(self, models: Sequence[dict[str, Any]]) -> None:
        self.models = list(models)

    def describe_models(self, *, timeout_seconds: float = 10) -> dict[str, Any]:
        state = self.models.pop(0)
        return {state["name"]: state}


def test_wait_for_rollback_asks_until_it_is_done():
    waiting = model(version(7, LOADING), SERVES_ON, default=8)
    calls = Questions([waiting, waiting, model(version(7, AVAILABLE), default=7)])
    clock = FakeClock()
    assert calls.wait_for_rollback("ctr", 8, clock=clock) == 7
    assert clock.waits == [ROLLBACK_POLL_SECONDS] * 2


def test_wait_for_rollback_ends_if_the_model_goes():
    with pytest.raises(NotFound, match="'other' was removed"):
        Questions([model(default=None)]).wait_for_rollback("other", 8, clock=FakeClock())


def test_waiting_version_reads_like_no_failure():
    waiting = model(version(7, LOADING), SERVES_ON, default=8)
    assert roles(waiting, SERVES_ON) == [
        "default",
        "blocked: rolled back",
        "serves until version 7 does",
    ]
    hopeless = model(version(7, END, "torn file"), SERVES_ON, default=8)
    assert roles(hopeless, SERVES_ON)[-1] == "serves because no other version can"
