"""The bridge to the REST workers, and the selection of the KServe repository."""

from dataclasses import dataclass, field

from serving.rest.bridge import RestBridge, RestTarget
from tests.unit.fakes.errors import StatusError
from tests.unit.fakes.servers import FakeEndedRequest, FakeRestWorkers


class FakeBridge(RestBridge):
    """Returns to each request the answer that a test has set."""

    def __init__(self) -> None:
        super().__init__(FakeRestWorkers(), timeout_seconds=30, status_error=StatusError)
        self.answer = FakeEndedRequest(1, body=b'{"predictions": [2]}', version=3)
        self.error: Exception | None = None
        self.asked: list[tuple[RestTarget, bytes]] = []

    async def submit(self, target, headers, body, *, connection=None, timeout_seconds=None):
        if self.error is not None:
            raise self.error
        self.asked.append((target, body))
        return self.answer


@dataclass
class FakeSelection:
    """Records the selections of the repository."""

    unloaded: frozenset[str] = frozenset()
    changes: list[tuple[str, bool]] = field(default_factory=list)

    def set_unloaded(self, name: str, *, is_unloaded: bool) -> None:
        self.changes.append((name, is_unloaded))
