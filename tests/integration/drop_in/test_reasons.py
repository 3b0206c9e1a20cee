"""Errors that name their reason, as clients see them."""

import re
import shutil
from pathlib import Path

import grpc
import numpy as np

from tests.integration.clients import caller_to, refusal_with_reason, wait_until
from tests.integration.exports import SMALL_SHARD, ScaleModel, flip_a_byte
from tests.integration.model_host import ModelHost

X = {"x": np.ones(1, np.float32)}
NOT_FOUND = grpc.StatusCode.NOT_FOUND


# --- NOT_FOUND ------------------------------------------------------------------------------------


REASON = "base path holds no version directory"


def test_not_found_of_empty_base_path_has_reason(host: ModelHost) -> None:
    model = host.model(prefix="scale")
    model.wait_for_log("no_version_in_base_path")
    with caller_to(model.server.target) as caller:
        # The request threads learn the reason a moment after the log.
        wait_until(
            lambda: refusal_with_reason(lambda: caller.outputs(model.name, X))[1].endswith(REASON),
            "the reason",
        )
        code, message = refusal_with_reason(lambda: caller.outputs(model.name, X))
        assert code == NOT_FOUND
        assert message.startswith(f"Servable not found for request: Latest({model.name})")
        code, message = refusal_with_reason(lambda: caller.outputs(model.name, X, version=3))
        assert message.startswith(f"Servable not found for request: Specific({model.name}, 3)")
        assert message.endswith("base path holds no version directory")
        assert refusal_with_reason(lambda: caller.outputs("other", X))[0] == NOT_FOUND


def test_not_found_of_half_copied_version_names_file(
    host: ModelHost, scale_model: ScaleModel, tmp_path: Path
) -> None:
    model = host.model(prefix="scale")
    copy = scale_model.write(tmp_path / "whole", 3)
    (target := model.base_path / "3").mkdir()
    shutil.copy(copy / "saved_model.pb", target)
    shutil.copytree(copy / "variables", target / "variables")
    for data in (target / "variables").glob("variables.data-*"):
        data.unlink()
    model.wait_for_log("version_incomplete")
    with caller_to(model.server.target) as caller:

        def message_now() -> str:
            code, message = refusal_with_reason(lambda: caller.outputs(model.name, X))
            assert code == NOT_FOUND
            return message

        # A note reaches the data plane a moment after the log.
        wait_until(
            lambda: re.search(r"version 3 is being copied: .*variables\.data-", message_now()),
            "the reason",
        )
        message = message_now()
        assert refusal_with_reason(lambda: caller.outputs(model.name, X, version=3))[1].endswith(
            message.partition("; available versions: none; ")[2]
        )


def test_not_found_of_a_failed_version_has_its_error(
    host: ModelHost, scale_model: ScaleModel
) -> None:
    model = host.model(prefix="scale")
    scale_model.write(model.base_path, 3, prepare=lambda path: flip_a_byte(path / SMALL_SHARD, 0))
    model.wait_for_log("load_failed", version=3)
    with caller_to(model.server.target) as caller:
        for version in (None, 3):

            def names_the_failure(version: int | None = version) -> bool:
                code, message = refusal_with_reason(
                    lambda: caller.outputs(model.name, X, version=version)
                )
                return code == NOT_FOUND and "version 3 failed: " in message

            wait_until(names_the_failure, "the reason")


# --- Unknown methods ------------------------------------------------------------------------------


def test_every_unimplemented_has_a_message(host: ModelHost) -> None:
    with caller_to(host.model().server.target) as caller:
        for method in ("/inference.GRPCInferenceService/TraceSetting", "/a.B/C", "/no_slash"):
            code, message = refusal_with_reason(lambda: caller.send_bytes(method, b""))  # noqa: B023
            assert (code, message) == (
                grpc.StatusCode.UNIMPLEMENTED,
                f"this server has no method {method}",
            )
