import pytest

from serving.base.errors import InvalidArgument, InvalidConfig, StatusCode
from serving.base.protos import model_management_pb2, model_server_config_pb2
from serving.core.config_document import parse_config
from serving.core.model_config import ModelConfig, SettingsByModel
from serving.core.model_settings import CanarySettings, ModelSettings
from serving.core.operator_api import RELOAD_CONFIG
from serving.core.servable import AVAILABLE
from serving.core.version_selection import All, Latest, Specific
from serving.reload.config_reload import ConfigReloader
from serving.rpc.config_service import RELOAD_TIMEOUT_SECONDS, ConfigService
from serving.rpc.rare_calls import answer
from tests.unit.fakes.servers import FakeRareCall
from tests.unit.worlds.reload import Reload

KEPT = ModelSettings(keep_previous_seconds=60, canary=CanarySettings(weight=0.5))


class Service(Reload):
    """The service on a reloader with fake models."""

    def __init__(self) -> None:
        super().__init__(SettingsByModel(KEPT))
        self.service = ConfigService(self.reloader, self.world.models)


@pytest.fixture
def service() -> Service:
    return Service()


def request(*names: str) -> bytes:
    message = model_management_pb2.ReloadConfigRequest(metric_names=["any"])
    for name in names:
        message.config.model_config_list.config.add(name=name, base_path=f"/{name}")
    serialized: bytes = message.SerializeToString()
    return serialized


def test_reload_config_makes_the_change_and_answers_ok(service: Service) -> None:
    service.will_be("b", AVAILABLE)
    answer = service.service.reload_config(request("b"))
    response = model_management_pb2.ReloadConfigResponse.FromString(answer)
    assert (response.status.error_code, list(response.metric)) == (0, [])
    assert service.world.models.names == ("b",)


@pytest.mark.parametrize(
    ("remaining_seconds", "expected"), [(None, RELOAD_TIMEOUT_SECONDS), (3.0, 2.5)]
)
def test_reload_config_waits_within_caller_deadline(
    service: Service, remaining_seconds: float | None, expected: float
) -> None:
    handler = service.service.handlers[RELOAD_CONFIG]
    call = FakeRareCall(RELOAD_CONFIG, request("a", "b"), remaining_seconds)
    answer(call, {RELOAD_CONFIG: handler})
    ((code, message),) = (item for item in call.answers if isinstance(item, tuple))
    assert (code, "b: no version found in '/b'" in message) == (StatusCode.UNKNOWN, True)
    assert sum(service.clock.waits) == expected


def test_reload_config_of_junk_is_invalid(service: Service) -> None:
    with pytest.raises(InvalidArgument, match="not a valid ReloadConfigRequest"):
        service.service.reload_config(b"\xff")


def test_reload_config_without_a_list_is_invalid(service: Service) -> None:
    message = model_management_pb2.ReloadConfigRequest()
    with pytest.raises(InvalidConfig, match="no model_config_list in it"):
        service.service.reload_config(message.SerializeToString())
    assert service.world.models.names == ("a",)


def test_reload_config_to_no_model_removes_the_last(service: Service) -> None:
    message = model_management_pb2.ReloadConfigRequest()
    message.config.model_config_list.SetInParent()
    service.service.reload_config(message.SerializeToString())
    assert service.world.models.names == ()


def test_reload_config_of_custom_config_is_invalid(service: Service) -> None:
    message = model_management_pb2.ReloadConfigRequest()
    custom = model_server_config_pb2.ModelServerConfig()
    custom.custom_model_config.SetInParent()
    message.config.CopyFrom(custom)
    with pytest.raises(InvalidConfig, match="custom_model_config is refused"):
        service.service.reload_config(message.SerializeToString())


def test_get_config_is_readable_by_parse_config(service: Service) -> None:
    models = [
        ModelConfig(name="a", base_path="/a", version_selection=All()),
        ModelConfig(name="b", base_path="/b", version_selection=Latest(2), labels={"x": 1}),
        ModelConfig(name="c", base_path="/c", version_selection=Specific(frozenset({1, 7}))),
    ]
    reloader: ConfigReloader = service.reloader
    reloader.change(models)
    parsed, settings = parse_config(service.service.get_config(b""))
    assert parsed == service.world.models.models
    assert [model.settings for model in parsed] == [KEPT, KEPT, KEPT]
    assert settings.of("new") == KEPT
