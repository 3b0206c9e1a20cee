import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.http.status import fleet_status
from fleet.rollout.decision import decide
from fleet.rollout.figures import EDGES_NS, NO_REQUESTS
from fleet.rollout.report_document import TEXT_LENGTH_MAX, server_report
from fleet.rollout.reports import Sighting
from fleet.rollout.state import FleetState
from serving.base.clock import Now
from serving.base.errors import DataLoss, StatusCode
from serving.core.servable import HEALTHY, ServableState
from tests.fleet.worlds.fleet import SETTINGS

VERSION = {"state": "END", "error_code": 9, "error_message": "no", "latency_counts": []}
MODEL = {
    "granted": None,
    "order": 0,
    "default_version": None,
    "found": [1],
    "blocked": {"3": "bad"},
    "versions": {"1": VERSION},
}
REPLY = {"incarnation": 5, "is_draining": True, "free_bytes": 7, "models": {"m": MODEL}}


def test_reply_becomes_a_report() -> None:
    report = server_report(REPLY)
    assert (report.incarnation, report.is_draining, report.free_bytes) == (5, True, 7)
    model = report.models["m"]
    assert model.found == {1}
    assert model.blocked == {3: "bad"}
    assert model.versions[1].health.code is StatusCode.FAILED_PRECONDITION
    assert model.versions[1].figures is NO_REQUESTS


def test_version_without_an_error_is_healthy() -> None:
    row = {**VERSION, "error_code": 0, "request_count": 2, "failed_count": 1}
    reply = {**REPLY, "models": {"m": {**MODEL, "versions": {"1": row}}}}
    version = server_report(reply).models["m"].versions[1]
    assert version.health is HEALTHY
    assert (version.figures.request_count, version.figures.failed_count) == (2, 1)


def with_model(**values: object) -> dict[str, object]:
    return {**REPLY, "models": {"m": {**MODEL, **values}}}


def with_version(**values: object) -> dict[str, object]:
    return with_model(versions={"1": {**VERSION, **values}})


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {**REPLY, "models": []},
        {**REPLY, "models": {"m": {}}},
        {**REPLY, "incarnation": "5"},
        {**REPLY, "free_bytes": -1},
        {**REPLY, "is_draining": 1},
        with_model(granted="1"),
        with_model(granted=True),
        with_model(order=-1),
        with_model(order=2**63),
        with_model(order=1.5),
        with_model(default_version=-1),
        with_model(found={"1": 1}),
        with_model(found=["1"]),
        with_model(blocked={"x": "bad"}),
        with_model(blocked={"1": 5}),
        with_model(versions={"-1": VERSION}),
        with_version(state="NEW"),
        with_version(error_code=99),
        with_version(warned_alone="finite"),
        with_version(excused=[5]),
        with_version(excused=["x"] * 101),
        with_version(error_message=None),
        with_version(request_count=-1),
        with_version(failed_count=None),
        with_version(latency_counts=[1]),
        with_version(latency_counts=[1] * len(EDGES_NS)),
        with_version(latency_counts=[-1] * (len(EDGES_NS) + 1)),
    ],
)
def test_other_reply_is_refused(reply: dict[str, object]) -> None:
    with pytest.raises(DataLoss):
        server_report(reply)


MANY: Any = {str(number): "bad" for number in range(3_000)}


@pytest.mark.parametrize(
    "values",
    [
        {"found": list(range(3_000))},
        {"blocked": MANY},
        {"versions": {key: {} for key in MANY}},
        {"versions": {"1": {"state": "END", "latency_counts": [1] * (len(EDGES_NS) + 2)}}},
    ],
)
def test_report_with_too_many_parts_is_refused(values: dict[str, Any]) -> None:
    model = {**MODEL, **values}
    with pytest.raises(DataLoss):
        server_report({**REPLY, "models": {"m": model}})


def test_report_of_too_many_models_is_refused() -> None:
    models = dict.fromkeys(MANY, MODEL)
    with pytest.raises(DataLoss, match="3000 models"):
        server_report({**REPLY, "models": models})
    with pytest.raises(DataLoss, match="a name of"):
        server_report({**REPLY, "models": {"m" * 2_000: MODEL}})


def test_long_reason_is_cut() -> None:
    model = {**MODEL, "blocked": {"3": "x" * 100_000}}
    report = server_report({**REPLY, "models": {"m": model}})
    assert len(report.models["m"].blocked[3]) == TEXT_LENGTH_MAX


def test_refusal_of_a_huge_value_is_short() -> None:
    for value in ([0] * 100_000, "9" * 100_000, {"x": "y" * 100_000}):
        with pytest.raises(DataLoss) as error:
            server_report({**REPLY, "incarnation": value})
        assert len(str(error.value)) < 1_000


# Values of the types that a report has, among any others.
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=0, max_value=9)
    | st.floats(allow_nan=False)
    | st.text(max_size=3)
    | st.sampled_from(["1", "2", *(state.name for state in ServableState)])
    | st.just([1] * (len(EDGES_NS) + 1))
    | st.just([1, 2])
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """Returns a report with random values at a few of its places."""
    document = json.loads(json.dumps(REPLY))
    model = document["models"]["m"]
    for part in (model["versions"]["1"], model, document):
        if not draw(st.booleans()):
            continue
        key = draw(st.sampled_from([*part, "request_count"]))
        is_number = type(part.get(key, 0)) is int
        part[key] = draw(
            st.integers(min_value=0) if is_number and draw(st.booleans()) else ANYTHING
        )
    return document


@given(documents() | ANYTHING)
def test_any_json_is_a_report_or_data_loss(document: Any) -> None:
    with suppress(DataLoss):
        report = server_report(json.loads(json.dumps(document)))
        sightings = {"a": Sighting(report, 0), "b": Sighting(report, 0)}
        # A report that was read ends neither a decision nor the status.
        decision = decide(FleetState(), {}, sightings, SETTINGS, Now(0))
        json.dumps(fleet_status(decision.state, decision.watches, sightings, SETTINGS, 0))
