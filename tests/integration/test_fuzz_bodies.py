"""Ten thousand mutated JSON bodies over HTTP: no crash, no leak, always a clean answer.

MILLPOND_FUZZ_SEED and MILLPOND_FUZZ_BODY_COUNT change the bodies and their number.
"""

import http.client
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from serving import ModelServer
from tests.integration.body_fuzzer import INFER, PREDICT, Mutant, mutants, originals
from tests.integration.clients import wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import drop
from tests.integration.processes import anonymous_mib, is_alive

SEED = int(os.environ.get("MILLPOND_FUZZ_SEED", "20261122"))
COUNT = int(os.environ.get("MILLPOND_FUZZ_BODY_COUNT", "10000"))

CLEAN_STATUSES = {200, 400, 404, 429}
ANSWER_SECONDS = 30
# A leak of one tensor in one request of a hundred would exceed this.
GROWTH_MIB_MAX = 6.0


@pytest.fixture
def server(start_server: StartServer, base_path: Path, echo_export: Path) -> ModelServer:
    drop(echo_export, base_path, 7)
    server = start_server(model_name="echo", base_path=base_path)
    server.wait_until_available("echo", 7)
    return server


@pytest.fixture
def connection(server: ModelServer) -> Iterator[http.client.HTTPConnection]:
    address = urlsplit(server.url).netloc
    with closing(http.client.HTTPConnection(address, timeout=ANSWER_SECONDS)) as connection:
        yield connection


def send(connection: http.client.HTTPConnection, path: str, body: bytes) -> tuple[int, bytes]:
    connection.request("POST", path, body)
    response = connection.getresponse()
    return response.status, response.read()


def send_clean(connection: http.client.HTTPConnection, mutant: Mutant) -> int:
    """Returns the status after a check that the answer is well-formed."""
    status, body = send(connection, mutant.path, mutant.body)
    assert status in CLEAN_STATUSES, f"{mutant}: {status} {body!r}"
    answer = json.loads(body)
    if status == 200:
        assert answer.keys() & {"predictions", "outputs"}, f"{mutant}: {body!r}"
    else:
        assert list(answer) == ["error"], f"{mutant}: {body!r}"
        assert answer["error"].strip(), f"{mutant}: {body!r}"
    return status


def test_originals_are_answered(connection: http.client.HTTPConnection):
    for path, document in originals():
        status, body = send(connection, path, json.dumps(document).encode())
        assert status == 200, (document, body)


def test_fuzzed_bodies_get_clean_answers_without_leak(
    server: ModelServer, connection: http.client.HTTPConnection
):
    all_mutants = list(mutants(COUNT, SEED))
    statuses = Counter(send_clean(connection, mutant) for mutant in all_mutants)
    # The fuzzer reaches both the refusals and the answers.
    assert statuses[200] > COUNT / 20, statuses
    assert statuses[400] > COUNT / 5, statuses
    assert {mutant.path for mutant in all_mutants} == {PREDICT, INFER}
    assert is_alive(server.process_id)
    # One-time allocations are done; jemalloc returns the memory freed in a round after 10 s.
    before_mib = anonymous_mib(server.process_id)
    for mutant in all_mutants[: COUNT // 2]:
        send_clean(connection, mutant)
    wait_until(
        lambda: anonymous_mib(server.process_id) - before_mib < GROWTH_MIB_MAX,
        f"at most {GROWTH_MIB_MAX} MiB more than {before_mib:.1f} MiB",
    )
