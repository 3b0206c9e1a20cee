"""The server of the load tests that need one version of the demo's model and no swaps."""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from loadtest.drive.demo_model import MODEL_NAME, demo_directory, prepare_model
from loadtest.drive.life_slow_model import SLOW_MODEL_NAME, prepare_slow_model
from loadtest.plan.presets import preset
from serving.server.model_server import ModelServer


@contextmanager
def demo_server(
    parsed: argparse.Namespace, say: Callable[[str], None], *, has_slow_model: bool = False
) -> Iterator[ModelServer]:
    """Yields a server whose version 1 is AVAILABLE. Uses `--preset`, `--models` and `--table-rows`.

    With `has_slow_model` it serves the model of `life_slow_model` too. Raises InvalidConfig if a model
    cannot be exported, and Unavailable if it does not load.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(demo_directory(parsed.models))
        places = {MODEL_NAME: prepare_model(directory, parsed.table_rows, say).base_path}
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millpond-demo-")))
        if has_slow_model:
            places[SLOW_MODEL_NAME] = work / SLOW_MODEL_NAME
            prepare_slow_model(places[SLOW_MODEL_NAME])
        flags = {**preset(parsed.preset).flags, "model_config_file": config_file(work, places)}
        server = stack.enter_context(ModelServer(**flags))  # type: ignore[arg-type]
        for name in places:
            server.wait_until_available(name, 1)
        yield server


def config_file(directory: Path, places: Mapping[str, Path]) -> Path:
    """Writes the config file of these models, by name, into `directory`."""
    configs = (
        f'config {{ name: "{name}" base_path: "{path}" model_platform: "tensorflow" }}'
        for name, path in places.items()
    )
    file = directory / "models.config"
    file.write_text(f"model_config_list {{ {' '.join(configs)} }}")
    return file
