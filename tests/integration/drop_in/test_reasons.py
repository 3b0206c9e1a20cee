"""Errors that name their reason, and waits for a first version, as clients see them."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from serving import ModelServer
from tests.integration.clients import Caller, caller_to, refusal_with_reason, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel

X = {"x": np.ones(1, np.float32)}
NOT_FOUND, UNAVAILABLE = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE


def wait_until_noted(server: ModelServer, event: str) -> None:
    server.wait_for_event(lambda line: line["event"] == event, 120)


@pytest.fixture
def caller(start_server: StartServer, base_path: Path) -> Iterator[Caller]:
    server = start_server(model_name="scale", base_path=base_path)
    wait_until_noted(server, "no_version_in_base_path")
    with caller_to(server.target) as found:
        yield found


# --- NOT_FOUND ------------------------------------------------------------------------------------


def test_not_found_of_empty_base_path_has_reason(caller: Caller) -> None:
    code, message = refusal_with_reason(lambda: caller.outputs("scale", X))
    assert code == NOT_FOUND
    assert message.startswith("Servable not found for request: Latest(scale)")
    assert message.endswith("base path holds no version directory")
    code, message = refusal_with_reason(lambda: caller.outputs("scale", X, version=3))
    assert message.startswith("Servable not found for request: Specific(scale, 3)")
    assert message.endswith("base path holds no version directory")
    assert refusal_with_reason(lambda: caller.outputs("other", X))[0] == NOT_FOUND


def test_not_found_of_half_copied_version_names_file(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, tmp_path: Path
) -> None:
    copy = scale_model.write(tmp_path / "whole", 3)
    (target := base_path / "3").mkdir()
    shutil.copy(copy / "saved_model.pb", target)
    shutil.copytree(copy / "variables", target / "variables")
    for data in (target / "variables").glob("variables.data-*"):
        data.unlink()
    server = start_server(model_name="scale", base_path=base_path)
    wait_until_noted(server, "version_incomplete")
    with caller_to(server.target) as caller:

        def message_now() -> str:
            code, message = refusal_with_reason(lambda: caller.outputs("scale", X))
            assert code == NOT_FOUND
            return message

        # A note reaches the data plane a moment after the log.
        wait_until(lambda: "version 3 is being copied: " in message_now(), "the reason")
        message = message_now()
        assert "variables.data-" in message
        assert refusal_with_reason(lambda: caller.outputs("scale", X, version=3))[1].endswith(
            message.partition("; available versions: none; ")[2]
        )


def test_not_found_of_a_failed_version_has_its_error(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
) -> None:
    directory = scale_model.write(base_path, 3)
    for data in (directory / "variables").glob("variables.data-*"):
        data.write_bytes(b"\x00" * data.stat().st_size)
    server = start_server(model_name="scale", base_path=base_path)
    wait_until_noted(server, "ready")
    with caller_to(server.target) as caller:
        for version in (None, 3):
            code, message = refusal_with_reason(lambda: caller.outputs("scale", X, version=version))  # noqa: B023
            assert code == NOT_FOUND
            assert "version 3 failed: " in message


# --- The first version ----------------------------------------------------------------------------


def test_requests_wait_for_the_first_version(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
) -> None:
    server = start_server(model_name="scale", base_path=base_path, first_version_wait_seconds=120)
    wait_until_noted(server, "no_version_in_base_path")
    scale_model.write(base_path, 1)
    # From here on the version settles and loads, unless it already has.
    server.wait_for_event(lambda line: line["event"] in ("version_settling", "aspired"), 120)
    with caller_to(server.target) as caller:
        assert caller.outputs("scale", X)["y"].tolist() == [2.0]


def test_first_version_wait_ends_with_stage(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
) -> None:
    scale_model.write(base_path, 1)
    server = start_server(
        model_name="scale",
        base_path=base_path,
        first_version_wait_seconds=0.05,
        restore_bytes_per_second=1,
    )
    code, message = NOT_FOUND, ""
    with caller_to(server.target) as caller:
        while "stage restore" not in message:
            code, message = refusal_with_reason(lambda: caller.outputs("scale", X))
            assert code in (NOT_FOUND, UNAVAILABLE)
    assert (code, message) == (UNAVAILABLE, "model 'scale': version 1 is loading, stage restore")


# --- Unknown methods ------------------------------------------------------------------------------


def test_every_unimplemented_has_a_message(caller: Caller) -> None:
    for method in ("/inference.GRPCInferenceService/TraceSetting", "/a.B/C", "/no_slash"):
        code, message = refusal_with_reason(lambda: caller.send_bytes(method, b""))  # noqa: B023
        assert (code, message) == (
            grpc.StatusCode.UNIMPLEMENTED,
            f"this server has no method {method}",
        )
