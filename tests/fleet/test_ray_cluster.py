"""The calls to a Ray cluster that fail, with a fake of Ray."""

from typing import Any

import pytest

from fleet.config.ray_settings import RayModel, RaySettings
from fleet.replicas.replicas import Replica
from serving.base.errors import FailedPrecondition, Unavailable

pytest.importorskip("ray", reason="Ray is not installed: pip install 'millpond[ray]'")

import ray
import ray.util

from fleet.ray import deployment
from fleet.ray.cluster import RayServers
from fleet.ray.deployment import Deployment, NoFleet
from fleet.ray.engine import config_digest
from tests.fleet.fakes.ray_store import FakeStore
from tests.unit.fakes.clocks import FakeClock

SETTINGS = RaySettings(models=(RayModel(name="m", base_path="/m", memory_bytes=1),))
REPLICA = Replica(name="m-0", model="m", node="n", launch=7)
NO_ANSWER = ray.exceptions.ActorUnavailableError("cut off", None)


class Call:
    """A call to an actor that has not ended yet, or with a value or an error."""

    def __init__(self) -> None:
        self.result: Any = None
        self.has_ended = False

    def end(self, result: Any = None) -> None:
        self.result, self.has_ended = result, True


class FakeActor:
    """An actor that keeps the calls of each method."""

    def __init__(self) -> None:
        self.calls: dict[str, list[Call]] = {}

    def __getattr__(self, method: str) -> Any:
        class Method:
            def remote(_, *arguments: object) -> Call:  # noqa: N805
                self.calls.setdefault(method, []).append(Call())
                return self.calls[method][-1]

        return Method()


class FakeRay:
    """The functions of Ray that the fleet calls."""

    def __init__(self) -> None:
        self.actors: dict[str, FakeActor] = {"millpond/m-0/7": FakeActor()}
        self.error: Exception | None = None
        self.killed: list[FakeActor] = []
        self.named = [{"namespace": "millpond", "name": "millpond/m-0/7"}]

    def get_actor(self, name: str, namespace: str) -> FakeActor:
        assert namespace == "millpond"
        self._answer()
        if name not in self.actors:
            raise ValueError(name)
        return self.actors[name]

    def wait(self, calls: list[Call], timeout: float) -> tuple[list[Call], list[Call]]:
        assert timeout == 0
        return [call for call in calls if call.has_ended], []

    def get(self, call: Call, timeout: float | None = None) -> Any:
        if isinstance(call.result, Exception):
            raise call.result
        return call.result

    def kill(self, actor: FakeActor, *, no_restart: bool) -> None:
        assert no_restart
        self._answer()
        self.killed.append(actor)

    def list_named_actors(self, *, all_namespaces: bool) -> list[dict[str, str]]:
        assert all_namespaces
        self._answer()
        return self.named

    def nodes(self) -> list[dict[str, Any]]:
        self._answer()
        return []

    def _answer(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    made = FakeRay()
    for name in ("get_actor", "wait", "get", "kill", "nodes"):
        monkeypatch.setattr(ray, name, getattr(made, name))
    monkeypatch.setattr(ray.util, "list_named_actors", made.list_named_actors)
    return made


@pytest.fixture
def servers(fake: FakeRay) -> RayServers:
    return RayServers(SETTINGS)


def drains(fake: FakeRay) -> list[Call]:
    return fake.actors["millpond/m-0/7"].calls["drain"]


def test_drain_is_asked_once(fake: FakeRay, servers: RayServers) -> None:
    servers.stop(REPLICA)
    servers.stop(REPLICA)
    drains(fake)[0].end()
    servers.stop(REPLICA)
    assert len(drains(fake)) == 1


def test_drain_without_answer_is_repeated(fake: FakeRay, servers: RayServers) -> None:
    servers.stop(REPLICA)
    drains(fake)[0].end(NO_ANSWER)
    servers.stop(REPLICA)
    assert len(drains(fake)) == 2
    drains(fake)[1].end()
    servers.stop(REPLICA)
    assert len(drains(fake)) == 2


@pytest.mark.parametrize("error", [ray.exceptions.GetTimeoutError("late"), OSError("socket")])
def test_cluster_without_answer_is_unavailable(
    fake: FakeRay, servers: RayServers, error: Exception
) -> None:
    # Both are an OSError, which would be taken for one of the store.
    fake.error = error
    for call in (
        servers.rooms,
        lambda: servers.look([REPLICA]),
        lambda: servers.stop(REPLICA),
        lambda: servers.end(REPLICA),
        lambda: servers.orphans([]),
        lambda: servers.end_orphan("millpond/m-0/7"),
    ):
        with pytest.raises(Unavailable):
            call()
    fake.error = None
    servers.end(REPLICA)
    assert fake.killed == [*fake.actors.values()]


def test_look_without_answer_keeps_the_last(fake: FakeRay, servers: RayServers) -> None:
    answer = {"grpc": "h:1", "http": "", "process_id": 5, "exit_status": None}
    for result, expected in (
        (answer, ("h:1", False)),
        (NO_ANSWER, ("h:1", False)),
        (ray.exceptions.ActorDiedError(), ("", True)),
    ):
        servers.look([REPLICA])
        fake.actors["millpond/m-0/7"].calls["look"][-1].end(result)
        present = servers.look([REPLICA])["m-0"]
        assert (present.grpc, present.is_gone) == expected


def test_orphans_are_servers_of_this_fleet(fake: FakeRay, servers: RayServers) -> None:
    fake.named += [
        {"namespace": "millpond", "name": name}
        for name in ("millpond/coordinator", "other/m-0/7", "millpond2/m-0/7", "millpond/m-0/6")
    ]
    fake.named.append({"namespace": "another", "name": "millpond/m-0/5"})
    assert servers.orphans([REPLICA]) == ["millpond/m-0/6"]
    assert servers.orphans([]) == ["millpond/m-0/6", "millpond/m-0/7"]


def test_orphan_that_has_ended_is_left(fake: FakeRay, servers: RayServers) -> None:
    servers.end_orphan("millpond/m-0/6")
    assert fake.killed == []


class FakeCluster(Deployment):
    """A fleet with coordinators that answer in turn: each has a configuration and a process."""

    def __init__(self, answers: list[Any]) -> None:
        super().__init__("millpond", FakeClock())
        store: Any = FakeStore({"stopped": ""})
        self._store = self.store = store
        self.answers = answers
        self.kills = 0

    def status(self) -> dict[str, Any]:
        return {}

    def _created(self) -> Any:
        return self

    def _actor(self) -> Any:
        if not self.answers:
            raise NoFleet("none")
        return self

    def _ask_actor(self, method: str, timeout_seconds: float, *arguments: object) -> Any:
        self._actor()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def answer(config: str, process: int, *, is_stopping: bool = False) -> dict[str, Any]:
    return {"config": config_digest(config), "process": [process], "is_stopping": is_stopping}


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    monkeypatch.setattr(ray, "kill", lambda actor, no_restart: made.append(no_restart))
    return made


def test_deploy_waits_for_the_new_coordinator(kills: list[Any]) -> None:
    fleet = FakeCluster(
        [answer("old", 1), answer("old", 1), Unavailable("it starts"), answer("new", 2)]
    )
    fleet.change("new")
    # The old one was killed once, though it has answered twice.
    assert kills == [False]
    assert fleet.store.values == {"config": "new"}


def test_deploy_of_a_fleet_that_stops_starts_it(kills: list[Any]) -> None:
    FakeCluster([answer("c", 1, is_stopping=True), answer("c", 2)]).change("c")
    assert kills == [False]


def test_deploy_of_the_same_text_kills_nothing(kills: list[Any]) -> None:
    FakeCluster([answer("c", 1)]).change("c")
    assert kills == []


def test_deploy_that_is_not_taken_names_the_reason(kills: list[Any]) -> None:
    fleet = FakeCluster([Unavailable("the state is not readable")])
    with pytest.raises(Unavailable, match="the state is not readable"):
        fleet.change("c")
    assert kills == []


def test_stop_waits_for_the_end_of_the_fleet() -> None:
    fleet = FakeCluster([Unavailable("it starts"), None])
    polls = iter([True] * 5)

    def actor() -> Any:
        if not next(polls, False):
            raise NoFleet("none")
        return fleet

    fleet._actor = actor  # type: ignore[method-assign]
    fleet.shut_down()
    assert next(polls, "all polled") == "all polled"


def test_stop_that_takes_long_is_reported() -> None:
    fleet = FakeCluster([None])
    with pytest.raises(Unavailable, match="still runs after 5 s: its servers drain"):
        fleet.shut_down(5)


def test_stop_without_a_fleet_is_refused() -> None:
    with pytest.raises(NoFleet):
        FakeCluster([]).shut_down()


@pytest.mark.parametrize(
    ("wanted", "is_taken"),
    [("auto", True), ("10.0.0.1:6379", True), ("10.0.0.1:6380", False), ("10.0.0.2:6379", False)],
)
def test_connection_to_another_cluster_is_refused(
    monkeypatch: pytest.MonkeyPatch, wanted: str, is_taken: bool
) -> None:
    class Context:
        gcs_address = "10.0.0.1:6379"

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", Context)
    settings = RaySettings(models=SETTINGS.models, address=wanted)
    if is_taken:
        deployment._connect(settings)
    else:
        with pytest.raises(FailedPrecondition, match=r"connected to the Ray cluster at 10.0.0.1"):
            deployment._connect(settings)
