"""The texts on servers that a fleet does not get to run."""

from dataclasses import replace

import pytest

from fleet.replicas.decision import ReplicaDecision
from fleet.replicas.placement import ModelNeed, ServerRoom
from fleet.replicas.replica_problems import replica_problems
from fleet.replicas.replicas import Replica, ReplicaState, WantedModel

GB = 10**9
NODE = ServerRoom(name="a", memory_bytes=4 * GB)
REPLICA = Replica(name="m-0", model="m", node="a", launch=7, room_bytes=3 * GB, failure_count=2)


def wanted(replicas: int = 2, rate: float = 0.0) -> WantedModel:
    need = ModelNeed(
        name="m",
        version_bytes=GB,
        process_bytes=GB,
        replica_count=replicas,
        requests_per_second=rate,
    )
    return WantedModel(need=need)


def problems(
    *rows: Replica,
    nodes: tuple[ServerRoom, ...] = (NODE,),
    missing: int = 0,
    ready: frozenset[str] = frozenset(),
    reasons: dict[str, str] | None = None,
    rate: float = 0.0,
) -> list[str]:
    decision = ReplicaDecision(
        state=ReplicaState(replicas={row.name: row for row in rows}),
        missing={"m": missing} if missing else {},
    )
    return replica_problems([wanted(rate=rate)], decision, nodes, ready, reasons or {})


def test_fleet_without_problems_has_none() -> None:
    assert problems(replace(REPLICA, failure_count=0)) == []
    # It serves again.
    assert problems(REPLICA, ready=frozenset({"m-0"})) == []


def test_missing_replicas_name_need_and_what_is_left() -> None:
    (text,) = problems(replace(REPLICA, failure_count=0), missing=1)
    assert text.startswith("model m: 1 of 2 replicas find no node with room: each takes 3.00 GB")
    assert "more than 1.00 GB left; add a node, or lower replicas" in text


@pytest.mark.parametrize(
    ("nodes", "rate", "reason"),
    [
        ((), 0.0, "no node that takes servers"),
        ((replace(NODE, is_draining=True),), 0.0, "no node that takes servers"),
        ((replace(NODE, requests_per_second=10),), 5.0, "requests_per_second; add a node"),
        ((NODE, replace(NODE, name="b", memory_bytes=GB)), 0.0, "the other ones are too small"),
    ],
)
def test_missing_replicas_have_other_reasons(
    nodes: tuple[ServerRoom, ...], rate: float, reason: str
) -> None:
    (text,) = problems(nodes=nodes, missing=2, rate=rate)
    assert reason in text


def test_server_that_does_not_start_has_its_reason() -> None:
    (text,) = problems(REPLICA, reasons={"m-0": "bad flag"})
    assert text == "server m-0 has ended 2 times, the last time because: bad flag"
    (text,) = problems(REPLICA)
    assert text.endswith("an earlier coordinator has logged it")
    (text,) = problems(replace(REPLICA, failure_count=1))
    assert "has ended once," in text


def test_memory_of_other_jobs_is_not_left() -> None:
    node = replace(NODE, memory_bytes=100 * GB, free_bytes=2 * GB)
    (text,) = problems(nodes=(node,), missing=2)
    assert "more than 2.00 GB left" in text
