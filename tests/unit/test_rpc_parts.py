from serving.core.model_config import ModelConfig
from serving.core.model_settings import ModelSettings
from serving.server.models import model_limits


def model(name: str, max_in_flight_requests: int = 0) -> ModelConfig:
    settings = ModelSettings(max_in_flight_requests=max_in_flight_requests)
    return ModelConfig(name=name, base_path=f"/models/{name}", settings=settings)


def test_model_limit_alone_leaves_other_models_free():
    assert model_limits([model("slow", 2), model("quick")]) == {"slow": 2}
