"""Blocked or withdrawn versions never answer: in every snapshot of the serving map, and under load."""

import http.client
import json
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import numpy as np
import pytest

from serving import ModelServer
from serving.base.clock import NS_PER_SECOND, SystemClock, pause
from serving.base.errors import FailedPrecondition
from serving.client import Client
from serving.core.servable import AVAILABLE, END
from tests.integration.clients import (
    array,
    caller_to,
    is_right,
    predict_request,
    wait_for_states,
    wait_until,
)
from tests.integration.conftest import REPOSITORY, StartServer
from tests.integration.exports import ScaleModel

# The two kinds of rounds, once each.
ROUND_COUNT = 2
LONG_ROUND_COUNT = 50
CASE_COUNT = 60
LONG_CASE_COUNT = 2_000
# Far above the time of the runs, on a machine that is busy with other work.
LONG_TIMEOUT_SECONDS = 7_200

REQUESTS_PER_SECOND = 400
# Each protocol sends half of the requests, over so many connections.
CONNECTION_COUNT = 4
# On a busy machine the swap may be over before the rollback: then another version can be rolled
# back.
KEEP_PREVIOUS_SECONDS = 1.5
ATTEMPT_COUNT = 50
ANSWER_SECONDS = 60

X = np.array([1.0, 2.5, -3.0], np.float32)

LONG = (pytest.mark.soak, pytest.mark.timeout(LONG_TIMEOUT_SECONDS))


@pytest.mark.parametrize(
    "case_count",
    [CASE_COUNT, pytest.param(LONG_CASE_COUNT, marks=LONG)],
)
def test_no_sequence_lets_a_blocked_version_answer(echo_export: Path, case_count: int):
    result = subprocess.run(
        [
            *(sys.executable, "-m", "tests.integration.who_may_answer"),
            *(str(echo_export), str(case_count)),
        ],
        check=False,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=LONG_TIMEOUT_SECONDS,
    )
    assert result.returncode == 0, result.stdout[-3_000:] + result.stderr[-3_000:]
    print(result.stdout.splitlines()[-1])


@dataclass
class Load:
    """Clients that send at a steady rate over gRPC and REST and check each answer.

    The versions in `blocked` must not answer requests that are sent from now on.
    """

    server: ModelServer
    blocked: frozenset[int] = frozenset()
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    forbidden: list[str] = field(default_factory=list)
    is_over: bool = False

    @contextmanager
    def running(self) -> Iterator["Load"]:
        threads = [
            threading.Thread(target=self._send, args=(protocol, ask, number))
            for number in range(CONNECTION_COUNT)
            for protocol, ask in (("grpc", self._ask_grpc), ("rest", self._ask_rest))
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self.is_over = True
            for thread in threads:
                thread.join()

    def wait_for_answers_of(self, version: int) -> None:
        """Waits until both protocols have had one more answer of `version`."""
        before = self.answers.copy()
        keys = [("grpc", version), ("rest", version)]
        wait_until(
            lambda: self.failures or all(self.answers[key] > before[key] for key in keys),
            f"answers of version {version} over both protocols",
        )

    def _send(
        self, protocol: str, asking: Callable[[], Iterator[Callable[[], int]]], number: int
    ) -> None:
        clock = SystemClock()
        period_ns = NS_PER_SECOND * 2 * CONNECTION_COUNT // REQUESTS_PER_SECOND
        due_ns = clock.now_ns() + period_ns * number // CONNECTION_COUNT
        for ask in asking():
            pause(clock, max(0, due_ns - clock.now_ns()) / NS_PER_SECOND)
            due_ns += period_ns
            blocked = self.blocked
            try:
                version = ask()
            except (grpc.RpcError, OSError, AssertionError) as error:
                self.failures.append(f"{protocol}: {error}")
                return
            self.answers[protocol, version] += 1
            if version in blocked:
                self.forbidden.append(f"{protocol}: version {version}")

    def _ask_grpc(self) -> Iterator[Callable[[], int]]:
        request = predict_request("scale", {"x": X})
        with caller_to(self.server.target) as caller:

            def ask() -> int:
                response = caller.predict(request, timeout=ANSWER_SECONDS)
                version: int = response.model_spec.version.value
                assert is_right(array(response.outputs["y"]), ScaleModel.answer(version, X))
                return version

            while not self.is_over:
                yield ask

    def _ask_rest(self) -> Iterator[Callable[[], int]]:
        body = json.dumps({"inputs": {"x": X.tolist()}})
        address = urlsplit(self.server.url).netloc
        connection = http.client.HTTPConnection(address, timeout=ANSWER_SECONDS)

        def ask() -> int:
            connection.request("POST", "/v1/models/scale:predict", body)
            response = connection.getresponse()
            answer = response.read()
            assert response.status == http.HTTPStatus.OK, f"{response.status} {answer!r}"
            outputs = json.loads(answer)["outputs"]
            version = int(outputs["version"])
            assert is_right(outputs["y"], ScaleModel.answer(version, X))
            return version

        while not self.is_over:
            yield ask
        connection.close()


@dataclass
class Operator:
    """Drops versions and rolls them back."""

    client: Client
    load: Load
    model: ScaleModel
    base_path: Path
    version: int = 1

    def drop(self) -> int:
        """Drops the next version and waits until it serves."""
        self.version += 1
        self.model.write(self.base_path, self.version)
        self.wait_for({self.version: AVAILABLE})
        self.load.wait_for_answers_of(self.version)
        return self.version

    def drop_and_roll_back(self) -> tuple[int, int]:
        """Drops a version and blocks it; returns it and the version that answers instead."""
        for _ in range(ATTEMPT_COUNT):
            bad = self.drop()
            with suppress(FailedPrecondition):
                done = self.client.rollback("scale")
                assert done.rolled_back == bad
                assert done.version is not None
                self.load.blocked |= {bad}
                self.load.wait_for_answers_of(done.version)
                return bad, done.version
        raise AssertionError("the previous version was gone each time")

    def wait_for(self, states: dict[int, object]) -> None:
        wait_for_states(self.client, "scale", states)  # type: ignore[arg-type]

    def forget_before(self, version: int) -> None:
        """Removes the files of ended versions."""
        for path in self.base_path.iterdir():
            if path.name.isdecimal() and int(path.name) < version:
                shutil.rmtree(path)


@pytest.mark.parametrize("round_count", [ROUND_COUNT, pytest.param(LONG_ROUND_COUNT, marks=LONG)])
def test_blocked_versions_never_answer_under_load(
    start_server: StartServer,
    scale_model: ScaleModel,
    base_path: Path,
    tmp_path: Path,
    round_count: int,
):
    settings = tmp_path / "settings.toml"
    settings.write_text(f"[models.scale]\nkeep_previous_seconds = {KEEP_PREVIOUS_SECONDS}\n")
    scale_model.write(base_path, 1)
    server = start_server(model_name="scale", base_path=base_path, model_settings_file=settings)
    server.wait_until_available("scale", 1)
    with Client(server.admin_target) as client, Load(server).running() as load:
        operator = Operator(client, load, scale_model, base_path)
        for number in range(round_count):
            one_round(operator, is_next_dropped=number % 2 == 0)
            assert not load.failures, load.failures[:3]
            assert not load.forbidden, load.forbidden[:3]
    counts = Counter(protocol for protocol, _ in load.answers.elements())
    print(f"{round_count} rounds: {dict(counts)}, failed {len(load.failures)}, blocked 0")
    assert not load.failures, load.failures[:3]
    assert not load.forbidden, load.forbidden[:3]


def one_round(operator: Operator, *, is_next_dropped: bool) -> None:
    """A version is blocked, and leaves to free memory for the next one or because its time is over."""
    bad, good = operator.drop_and_roll_back()
    if is_next_dropped:
        good = operator.drop()
    operator.wait_for({bad: END})
    operator.load.wait_for_answers_of(good)
    operator.forget_before(good)
