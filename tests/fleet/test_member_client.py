"""The client of a coordinator to a member, with a real server of gRPC."""

import json

import grpc
import pytest

from fleet.lead.member_client import member_client
from fleet.rollout.report_document import REPORT_BYTES_MAX, server_report
from serving.base.errors import MillpondError, StatusCode
from tests.unit.fakes.grpc_services import grpc_service

EMPTY = {"incarnation": 1, "is_draining": False, "free_bytes": 0, "models": {}}


@pytest.mark.parametrize("size", [60_000_000, REPORT_BYTES_MAX + 1])
def test_huge_report_is_refused_before_it_is_parsed(size: int) -> None:
    def answer(path: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        del path, request, context
        return b'{"models": {' + b" " * size + b"}}"

    with (
        grpc_service(answer) as port,
        member_client(f"localhost:{port}") as client,
        pytest.raises(MillpondError, match="larger than max") as refused,
    ):
        client.fleet_report([], timeout_seconds=20)
    assert refused.value.code is StatusCode.RESOURCE_EXHAUSTED


def test_report_of_a_full_server_is_read() -> None:
    """A thousand models with three versions each, and a hundred counts of latencies in each version."""
    version = {"state": "AVAILABLE", "error_code": 0, "latency_counts": [123_456] * 122}
    version |= {"error_message": "", "request_count": 5, "failed_count": 0}
    model = {
        "granted": 3,
        "order": 9,
        "default_version": 3,
        "found": list(range(20)),
        "blocked": {},
    }
    model["versions"] = {str(number): version for number in (1, 2, 3)}
    text = json.dumps({**EMPTY, "models": {f"model-{i}": model for i in range(1_000)}}).encode()

    def answer(path: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        del path, request, context
        return text

    with grpc_service(answer) as port, member_client(f"localhost:{port}") as client:
        report = server_report(client.fleet_report([], timeout_seconds=20))
    assert len(report.models) == 1_000
    assert report.models["model-7"].serves(3)
