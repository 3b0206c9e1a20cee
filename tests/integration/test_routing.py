"""The effect of `ServingMap.set_routing` on requests: two versions behind the data plane's own
server, without the control plane.

The single rules are tested in tests/native.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import grpc
import numpy as np
import pytest

from serving.base.protos import get_model_metadata_pb2
from serving.client.stubs import PredictionServiceStub
from tests.integration.clients import Caller, predict_request, refusal

# Serves versions 7 and 8 of "echo" and prints its port. Then sets the routing on each line of its
# input, and prints None or the error.
SERVE = """
import json, sys
from types import MappingProxyType
from serving.data_plane import _native
from serving.core.servable import Routing

_native.initialize(intra_op_thread_count=1, inter_op_thread_count=1)
serving_map = _native.ServingMap()
for version in (7, 8):
    load = _native.SavedModelLoad("echo", version, sys.argv[1], ["serve"])
    for step in (
        load.read_graph, load.create_session, load.restore, load.run_init, load.make_callables,
    ):
        step()
    serving_map.publish(load.finish(), Routing())
server = _native.GrpcServer(
    serving_map, addresses=["127.0.0.1:0"], completion_queue_count=1, max_message_bytes=1_000_000,
    channel_arguments={}, rare_methods=[],
)
server.start()
print(server.port, flush=True)
for line in sys.stdin:
    routing = json.loads(line)
    # A mapping that is no dict, as a frozen value may hold one.
    routing["labels"] = MappingProxyType(routing["labels"])
    try:
        print(json.dumps(serving_map.set_routing("echo", Routing(**routing))), flush=True)
    except _native.StatusError as error:
        print(json.dumps(error.args), flush=True)
server.shutdown(0)
"""

INVALID_ARGUMENT = 3


class RoutedServer:
    """A server process with a routing that tests set."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.target = f"127.0.0.1:{self._line()}"

    def set_routing(
        self,
        *,
        default_version: int | None = None,
        labels: Mapping[str, int] | None = None,
        canary_version: int | None = None,
        canary_weight: float = 0.0,
        canary_header: str = "",
    ) -> list[object] | None:
        """Returns None, or the code and the message of the error."""
        routing = {
            "default_version": default_version,
            "labels": labels or {},
            "canary_version": canary_version,
            "canary_weight": canary_weight,
            "canary_header": canary_header,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(routing) + "\n")
        self._process.stdin.flush()
        error: list[object] | None = json.loads(self._line())
        return error

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@pytest.fixture(scope="module")
def server(echo_export: Path) -> Iterator[RoutedServer]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, str(echo_export)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield RoutedServer(process)
        process.communicate(timeout=60)
    assert process.returncode == 0


def answering_version(caller: Caller, *, label: str = "", user: str = "") -> int:
    """Returns the version that answers a Predict with that label, and with that user in its
    metadata.
    """
    request = predict_request("echo", {"count": np.int32(1)}, signature_name="fill")
    if label:
        request.model_spec.version_label = label
    metadata = [("user-id", user)] if user else []
    response = PredictionServiceStub(caller.channel).Predict(request, timeout=30, metadata=metadata)
    version: int = response.model_spec.version.value
    return version


def described_version(caller: Caller, label: str = "") -> int:
    """Returns the version that GetModelMetadata answers for."""
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "echo"
    if label:
        request.model_spec.version_label = label
    version: int = caller.metadata(request).model_spec.version.value
    return version


def test_predict_and_metadata_go_by_default_and_label(server: RoutedServer, caller: Caller):
    server.set_routing(default_version=7, labels={"stable": 7, "next": 8})
    assert (answering_version(caller), described_version(caller)) == (7, 7)
    for label, version in {"stable": 7, "next": 8}.items():
        assert answering_version(caller, label=label) == version
        assert described_version(caller, label) == version
    server.set_routing(default_version=8)
    assert (answering_version(caller), described_version(caller)) == (8, 8)


def test_only_routed_version_answers(server: RoutedServer, caller: Caller):
    server.set_routing(labels={"next": 8})
    for ask in (answering_version, described_version):
        code, message = refusal(lambda ask=ask: ask(caller))  # type: ignore[misc]
        assert code is grpc.StatusCode.NOT_FOUND
        assert "available versions: 7 8" in message
    assert answering_version(caller, label="next") == 8


def test_unmatched_label_is_refused_with_reason(server: RoutedServer, caller: Caller):
    server.set_routing(labels={"stable": 7, "later": 9})
    code, message = refusal(lambda: answering_version(caller, label="next"))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert message.startswith("Unrecognized servable version label: next;")
    assert "later stable" in message
    code, message = refusal(lambda: answering_version(caller, label="later"))
    assert code is grpc.StatusCode.NOT_FOUND
    assert "Specific(echo, 9)" in message
    assert "'later'" in message


def test_canary_keeps_each_user_to_one_version(server: RoutedServer, caller: Caller):
    server.set_routing(
        default_version=7, canary_version=8, canary_weight=0.5, canary_header="user-id"
    )
    users = [f"user-{number}" for number in range(40)]
    sides = [answering_version(caller, user=user) for user in users]
    assert set(sides) == {7, 8}
    assert [answering_version(caller, user=user) for user in users] == sides
    # The description of a model must not depend on the caller or the time.
    assert {described_version(caller) for _ in range(20)} == {7}


def test_canary_without_header_gets_random_share(server: RoutedServer, caller: Caller):
    server.set_routing(default_version=7, canary_version=8, canary_weight=0.25)
    answers = Counter(answering_version(caller, user="user-1") for _ in range(400))
    # Five standard deviations of the binomial around 100.
    assert 100 - 44 < answers[8] < 100 + 44


def test_wrong_routing_is_refused_and_changes_nothing(server: RoutedServer, caller: Caller):
    server.set_routing(default_version=7)
    for wrong, value in (
        (server.set_routing(default_version=8, canary_weight=1.5), "1.5"),
        (server.set_routing(default_version=8, canary_weight=float("nan")), "nan"),
        (server.set_routing(default_version=8, canary_header="User-Id"), "User-Id"),
    ):
        assert wrong is not None
        code, message = wrong
        assert code == INVALID_ARGUMENT
        assert value in str(message)
    assert answering_version(caller) == 7
