import json

import pytest
from starlette.testclient import TestClient

from serving.base.errors import NotFound, StatusCode
from serving.core.servable import AVAILABLE, END, LOADING, START, Health, LoadStage, ServableId
from serving.core.servable import ServableState as State
from serving.core.servable import ServableStatus as Status
from serving.http.app import HttpSettings, make_http_app
from serving.http.health_routes import (
    DRAINING,
    health_routes,
    model_readiness,
    readiness,
    readiness_document,
)
from serving.manager.state_monitor import StateMonitor
from serving.rpc.health import HealthReporter, HealthView, why_unavailable
from serving.source.notes import Note
from tests.unit.fakes.clocks import FakeClock

FAILED = Health(StatusCode.DATA_LOSS, "bad checksum")


def status(version: int, state: State, name: str = "m", **more: object) -> Status:
    return Status(id=ServableId(name, version), state=state, **more)  # type: ignore[arg-type]


def view(
    needed: str, *statuses: Status, models: str = "mn", is_draining: bool = False
) -> HealthView:
    by_model: dict[str, tuple[Status, ...]] = {}
    for item in statuses:
        by_model[item.id.name] = (*by_model.get(item.id.name, ()), item)
    return HealthView(
        models=tuple(models),
        statuses=by_model,
        needed=frozenset(needed),
        is_draining=is_draining,
    )


# --- Reasons for a model without a version --------------------------------------------------------


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        ([], "no version has been found in its base path"),
        ([status(7, START)], "version 7 is START"),
        ([status(7, LOADING, stage=LoadStage.RESTORE)], "version 7 is LOADING (restore)"),
        ([status(7, END, health=FAILED)], "version 7 failed: DATA_LOSS: bad checksum"),
        (
            [status(7, LOADING, health=FAILED)],
            "version 7 is LOADING again after: DATA_LOSS: bad checksum",
        ),
        ([status(7, END)], "version 7 was unloaded"),
        ([status(6, END, health=FAILED), status(7, LOADING)], "version 7 is LOADING"),
        ([status(6, AVAILABLE), status(7, END, health=FAILED)], None),
        ([status(6, END), status(7, AVAILABLE)], None),
    ],
)
def test_unavailable_reason_covers_latest_version(
    versions: list[Status], reason: str | None
) -> None:
    assert why_unavailable(versions) == reason


# --- Readiness for requests -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "is_ready", "reason"),
    [
        (view("mn"), False, "no version is available of: m, n"),
        (view("mn", status(1, AVAILABLE)), False, "no version is available of: n"),
        (view("mn", status(1, AVAILABLE), status(1, AVAILABLE, "n")), True, None),
        # A model that is added to a serving server does not turn requests for `m` away.
        (view("m", status(1, AVAILABLE)), True, None),
        # Its first model comes from a client, who must reach it.
        (view("", models=""), True, None),
        (view("m", status(1, AVAILABLE), is_draining=True), False, DRAINING),
    ],
)
def test_server_readiness_needs_all_required_models(
    seen: HealthView, is_ready: bool, reason: str | None
) -> None:
    found = readiness(seen)
    assert (found.is_ready, found.reason) == (is_ready, reason)


def test_readiness_names_unready_models_with_reason() -> None:
    found = readiness(view("mn", status(1, AVAILABLE), status(2, END, "n", health=FAILED)))
    assert found.reason_by_model == {"m": None, "n": "version 2 failed: DATA_LOSS: bad checksum"}


def test_readiness_reports_unusable_base_path_entries() -> None:
    def notes(name: str) -> list[Note]:
        incomplete = Note.of("version_incomplete", version=1, reason="no variables")
        return [Note.of("no_version_in_base_path"), incomplete] if name == "m" else []

    found = readiness(view("mn", status(1, LOADING, "n")), notes)
    assert found.reason_by_model == {
        "m": "no version has been found in its base path "
        "(version_incomplete version=1 reason=no variables)",
        "n": "version 1 is LOADING",
    }


def test_model_readiness_is_that_of_the_model_alone() -> None:
    seen = view("mn", status(1, AVAILABLE))
    assert model_readiness(seen, "m").is_ready
    assert not model_readiness(seen, "n").is_ready
    assert list(model_readiness(seen, "n").reason_by_model) == ["n"]


def test_model_readiness_in_drain_is_not_ready() -> None:
    found = model_readiness(view("m", status(1, AVAILABLE), is_draining=True), "m")
    assert (found.is_ready, found.reason) == (False, DRAINING)


def test_readiness_of_unknown_model_lists_known() -> None:
    with pytest.raises(NotFound, match="model 'x' is not configured; configured: m, n"):
        model_readiness(view("m"), "x")


def test_readiness_document_omits_empty_reasons() -> None:
    assert readiness_document(readiness(view("mn", status(1, AVAILABLE)))) == {
        "is_ready": False,
        "reason": "no version is available of: n",
        "models": {
            "m": {"is_ready": True},
            "n": {"is_ready": False, "reason": "no version has been found in its base path"},
        },
    }


# --- Over HTTP, with the reporter -----------------------------------------------------------------


class Probes:
    """A client of the two routes, and the reporter behind them."""

    def __init__(self) -> None:
        self.monitor = StateMonitor(FakeClock())
        self.reporter = HealthReporter(["m", "n"], self.monitor)
        app = make_http_app(health_routes(self.reporter.view), HttpSettings())
        self.client = TestClient(app)

    def becomes(self, name: str, state: State) -> None:
        self.monitor.record(status(1, state, name))
        self.reporter.update()

    def readyz(self, query: str = "") -> tuple[int, bool]:
        response = self.client.get(f"/readyz{query}")
        return response.status_code, response.json()["is_ready"]


@pytest.fixture
def probes() -> Probes:
    return Probes()


def test_healthz_is_200_for_any_state_of_models(probes: Probes) -> None:
    assert probes.client.get("/healthz").text == "ok\n"
    probes.reporter.drain()
    assert probes.client.get("/healthz").status_code == 200


def test_readyz_is_503_before_models_and_in_drain(probes: Probes) -> None:
    assert probes.readyz() == (503, False)
    probes.becomes("m", AVAILABLE)
    assert probes.readyz() == (503, False)
    assert probes.readyz("?model=m") == (200, True)
    probes.becomes("n", AVAILABLE)
    assert probes.readyz() == (200, True)
    probes.reporter.drain()
    assert probes.readyz() == (503, False)
    assert probes.readyz("?model=m") == (503, False)


def test_readyz_ignores_added_model_until_one_ends(probes: Probes) -> None:
    probes.becomes("m", AVAILABLE)
    probes.becomes("n", AVAILABLE)
    probes.reporter.set_models(["m", "n", "new"])
    assert probes.readyz() == (200, True)
    assert probes.readyz("?model=new") == (503, False)
    probes.becomes("n", END)
    assert probes.readyz() == (503, False)


def test_readyz_of_an_unknown_model_is_404(probes: Probes) -> None:
    response = probes.client.get("/readyz?model=x")
    assert response.status_code == 404
    assert "'x' is not configured" in json.loads(response.content)["error"]


def test_readyz_shows_name_outside_utf_8(probes: Probes) -> None:
    failed = Health(StatusCode.DATA_LOSS, "/m/\udcff is cut short")
    probes.monitor.record(status(1, END, "n", health=failed))
    probes.becomes("m", AVAILABLE)
    response = probes.client.get("/readyz?model=n")
    assert response.status_code == 503
    assert failed.message in response.json()["models"]["n"]["reason"]


def test_readyz_is_never_cached(probes: Probes) -> None:
    assert probes.client.get("/readyz").headers["cache-control"] == "no-store"
    assert probes.client.get("/healthz").headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probe_by_other_methods(probes: Probes, path: str) -> None:
    assert probes.client.head(path).content == b""
    refused = probes.client.post(path)
    assert refused.status_code == 405
    assert set(refused.headers["allow"].split(", ")) == {"GET", "HEAD"}
