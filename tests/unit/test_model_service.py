import pytest

from serving.base.errors import InvalidArgument, NotFound, StatusCode
from serving.base.protos import get_model_status_pb2
from serving.core.servable import (
    AVAILABLE,
    END,
    LOADING,
    Health,
    Routing,
    ServableId,
    ServableState,
    ServableStatus,
)
from serving.manager.state_monitor import StateMonitor
from serving.manager.stream import StreamState
from serving.manager.streams import Streams
from serving.rpc.model_service import ModelService
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.parts import FakeServedModels


class Models(FakeServedModels):
    def base_path(self, name: str) -> str | None:
        return super().base_path(name) if name in self.names else None


def service_with(*statuses: ServableStatus, **labels: int) -> ModelService:
    monitor = StateMonitor(FakeClock())
    for status in statuses:
        monitor.record(status)
    streams = Streams()
    streams.replace(StreamState(name="m", routing=Routing(labels=labels), is_idle=False))
    return ModelService(monitor, Models(["m", "empty"]), streams)


def status(version: int, state: ServableState, health: Health | None = None) -> ServableStatus:
    return ServableStatus(
        id=ServableId("m", version),
        state=state,
        health=health or Health(),
        state_changed_ns=FakeClock().now_ns(),
    )


def request(name: str = "m", *, version: int | None = None, label: str | None = None) -> bytes:
    message = get_model_status_pb2.GetModelStatusRequest()
    message.model_spec.name = name
    if version is not None:
        message.model_spec.version.value = version
    if label is not None:
        message.model_spec.version_label = label
    serialized: bytes = message.SerializeToString()
    return serialized


def answer(service: ModelService, serialized: bytes) -> list[tuple[int, int, int, str]]:
    response = get_model_status_pb2.GetModelStatusResponse.FromString(
        service.get_model_status(serialized)
    )
    return [
        (entry.version, entry.state, entry.status.error_code, entry.status.error_message)
        for entry in response.model_version_status
    ]


def test_status_lists_versions_from_high_to_low() -> None:
    service = service_with(status(1, END), status(3, LOADING), status(2, AVAILABLE))
    assert answer(service, request()) == [(3, 20, 0, ""), (2, 30, 0, ""), (1, 50, 0, "")]


def test_get_model_status_has_error_of_ended_version() -> None:
    service = service_with(status(1, END, Health(StatusCode.DATA_LOSS, "bad checksum")))
    assert answer(service, request()) == [(1, 50, 15, "bad checksum")]


def test_get_model_status_of_one_version() -> None:
    service = service_with(status(1, END), status(2, AVAILABLE))
    assert answer(service, request(version=1)) == [(1, 50, 0, "")]


def test_get_model_status_of_version_zero() -> None:
    service = service_with(status(0, AVAILABLE), status(2, AVAILABLE))
    assert answer(service, request(version=0)) == [(0, 30, 0, "")]


def test_status_of_unknown_version_names_known() -> None:
    service = service_with(status(1, END), status(2, AVAILABLE))
    with pytest.raises(
        NotFound,
        match=r"^Could not find version 9 of model m; known: 1 \(END\), 2 \(AVAILABLE\)$",
    ):
        service.get_model_status(request(version=9))


def test_status_of_unknown_model_names_configured() -> None:
    with pytest.raises(NotFound, match="of model x: it is not configured; configured: empty, m"):
        service_with().get_model_status(request("x"))


def test_status_of_empty_model_names_base_path() -> None:
    with pytest.raises(NotFound, match="no version was found in '/models/empty' yet"):
        service_with().get_model_status(request("empty"))


def test_status_without_model_spec_is_invalid() -> None:
    with pytest.raises(InvalidArgument, match="Missing ModelSpec"):
        service_with().get_model_status(b"")


def test_get_model_status_without_name_is_invalid() -> None:
    with pytest.raises(InvalidArgument, match="no name specified"):
        service_with().get_model_status(request(""))


def test_status_by_label_covers_labelled_version() -> None:
    service = service_with(status(1, AVAILABLE), status(2, LOADING), stable=1)
    assert answer(service, request(label="stable")) == [(1, 30, 0, "")]


def test_status_by_label_of_a_version_to_come() -> None:
    service = service_with(status(1, AVAILABLE), status(2, LOADING), next=2, gone=3)
    assert answer(service, request(label="next")) == [(2, 20, 0, "")]
    with pytest.raises(
        NotFound, match="version 3 of model m, to which version label 'gone' points; "
    ):
        service.get_model_status(request(label="gone"))


def test_status_by_unknown_label_names_known() -> None:
    service = service_with(status(1, AVAILABLE), stable=1, canary=1)
    with pytest.raises(
        InvalidArgument,
        match=r"^Unrecognized servable version label: next; labels of model 'm': canary, stable$",
    ):
        service.get_model_status(request(label="next"))


def test_get_model_status_names_a_model_without_labels() -> None:
    service = service_with(status(1, AVAILABLE))
    with pytest.raises(
        InvalidArgument,
        match=r"^Unrecognized servable version label: next; model 'm' has no labels: give it one with "
        r"version_labels in its configuration, or request a version, or neither$",
    ):
        service.get_model_status(request(label="next"))


@pytest.mark.parametrize("junk", [b"\xff", b"\x0a\xff\xff\xff", b"not a message"])
def test_get_model_status_of_junk_is_invalid(junk: bytes) -> None:
    with pytest.raises(InvalidArgument, match="not a valid GetModelStatusRequest"):
        service_with().get_model_status(junk)


def test_version_zero_means_all_without_such_a_version():
    """OpenVINO's ovmsclient asks so, and reads the states of whatever versions come back."""
    service = service_with(status(1, END), status(2, AVAILABLE))
    assert answer(service, request(version=0)) == answer(service, request())


def test_version_zero_means_itself_if_it_exists():
    service = service_with(status(0, END), status(1, AVAILABLE))
    assert [row[0] for row in answer(service, request(version=0))] == [0]
