"""The server of the load tests that need one version of the demo's model and no swaps."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from loadtest.drive.demo_model import MODEL_NAME, demo_directory, prepare_model
from loadtest.plan.presets import preset
from serving.server.model_server import ModelServer


@contextmanager
def demo_server(parsed: argparse.Namespace, say: Callable[[str], None]) -> Iterator[ModelServer]:
    """Yields a server whose version 1 is AVAILABLE. Uses `--preset`, `--models` and `--table-rows`.

    Raises InvalidConfig if the model cannot be exported, and Unavailable if it does not load.
    """
    with demo_directory(parsed.models) as directory:
        base_path = prepare_model(directory, parsed.table_rows, say).base_path
        flags = preset(parsed.preset).flags
        with ModelServer(model_name=MODEL_NAME, base_path=base_path, **flags) as server:  # type: ignore[arg-type]
            server.wait_until_available(MODEL_NAME, 1)
            yield server
