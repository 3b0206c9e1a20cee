"""One server with all models of the drop-in tests, as a user of TensorFlow Serving would start it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import ModelServer
from tests.integration.clients import Caller, caller_to
from tests.integration.conftest import StartServer
from tests.integration.kept_exports import kept_drop_in_models

CONFIG = """
model_config_list {{
  config {{
    name: "half_plus_two" base_path: "{directory}/half_plus_two" model_platform: "tensorflow"
    version_labels {{ key: "stable" value: 123 }}
  }}
  config {{ name: "half_plus_three" base_path: "{directory}/half_plus_three" model_platform: "tensorflow" }}
  config {{
    name: "labelled" base_path: "{directory}/labelled" model_platform: "tensorflow"
    model_version_policy {{ all {{}} }}
    version_labels {{ key: "stable" value: 1 }}
    version_labels {{ key: "canary" value: 2 }}
  }}
  config {{ name: "sums" base_path: "{directory}/sums" model_platform: "tensorflow" }}
  config {{ name: "texts" base_path: "{directory}/texts" model_platform: "tensorflow" }}
  config {{ name: "kinds" base_path: "{directory}/kinds" model_platform: "tensorflow" }}
  config {{ name: "dtypes" base_path: "{directory}/dtypes" model_platform: "tensorflow" }}
}}
"""


@pytest.fixture(scope="session")
def drop_in_models() -> Path:
    """The models, which no test changes."""
    return kept_drop_in_models()


@pytest.fixture(scope="module")
def drop_in_server(
    start_module_server: StartServer, drop_in_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> ModelServer:
    config = tmp_path_factory.mktemp("config") / "models.config"
    config.write_text(CONFIG.format(directory=drop_in_models))
    server = start_module_server(model_config_file=config)
    for model in sorted(path.name for path in drop_in_models.iterdir()):
        server.wait_until_available(model)
    server.wait_until_available("labelled", 1)
    return server


@pytest.fixture(scope="module")
def drop_in_caller(drop_in_server: ModelServer) -> Iterator[Caller]:
    with caller_to(drop_in_server.target) as caller:
        yield caller
