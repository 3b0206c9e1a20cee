import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from serving.config.tls_config import read_tls_config
from serving.reload.certificate_watch import CertificateWatcher
from tests.unit.fakes.clocks import FakeClock, WritingClock
from tests.unit.fakes.servers import FakeServerCertificates
from tests.unit.pem import Identity, config_text, make_identity


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> list[Identity]:
    directory = tmp_path_factory.mktemp("pem")
    return [make_identity(directory, name) for name in ("first", "second")]


class Watch:
    """A watcher of the file of a server that shows the first identity."""

    def __init__(self, directory: Path, identities: list[Identity]) -> None:
        self.file = directory / "tls.config"
        self.texts = [config_text(i.key, i.certificate) for i in identities]
        self.file.write_text(self.texts[0])
        self.clock = WritingClock(self.file)
        self.certificates = FakeServerCertificates({})
        self.watcher = CertificateWatcher(
            str(self.file),
            read_tls_config(self.file),
            self.certificates,
            period_seconds=1,
            clock=self.clock,
        )

    def poll(self, count: int = 2) -> list[tuple[str, str]]:
        """Returns the events logged in `count` polls, with the reason if there is one."""
        with capture_logs() as logs:
            for _ in range(count):
                self.watcher.poll()
        return [(log["event"], log.get("reason", "")) for log in logs]

    def reason(self) -> str:
        """Returns the reason of the refusal, which is logged once in three polls."""
        ((event, reason),) = self.poll(3)
        assert event == "certificates_refused"
        assert self.watcher.refusal is not None
        assert (self.watcher.refusal.file, self.watcher.refusal.reason) == (str(self.file), reason)
        return reason

    @property
    def replaced(self) -> list[Mapping[str, str]]:
        return self.certificates.replaced


@pytest.fixture
def watch(tmp_path: Path, identities: list[Identity]) -> Watch:
    return Watch(tmp_path, identities)


def test_watcher_same_file_replaces_nothing(watch: Watch):
    assert watch.poll() == []
    watch.file.write_text("# the same\n" + watch.texts[0])
    assert watch.poll() == []
    assert watch.replaced == []


def test_watcher_edit_replaces_certificates_once(watch: Watch, identities: list[Identity]):
    watch.poll()
    watch.file.write_text(watch.texts[1])
    assert watch.poll() == [("certificates_replaced", "")]
    second = identities[1]
    assert watch.replaced == [{"key": second.key, "chain": second.certificate, "client_ca": ""}]


def test_watcher_first_look_takes_edit_made_at_start(watch: Watch):
    watch.file.write_text(watch.texts[1])
    watch.poll(1)
    assert len(watch.replaced) == 1


def test_watcher_logs_bad_edit_once_and_keeps_old(watch: Watch, identities: list[Identity]):
    watch.poll()
    watch.file.write_text(config_text(identities[0].key, identities[1].certificate))
    assert "KEY_VALUES_MISMATCH" in watch.reason()
    assert watch.replaced == []


def test_watcher_refuses_client_verify_edit_at_runtime(watch: Watch, identities: list[Identity]):
    first, second = identities
    text = config_text(first.key, first.certificate, second.certificate, client_verify=True)
    watch.file.write_text(text)
    assert "client_verify is read only when the server starts" in watch.reason()
    assert watch.replaced == []


@pytest.mark.parametrize("is_emptied", [True, False])
def test_watcher_missing_file_is_refused_until_back(watch: Watch, is_emptied: bool):
    watch.poll()
    if is_emptied:
        watch.file.write_text("")
    else:
        os.unlink(watch.file)
    assert ("server_key must" if is_emptied else "cannot be read") in watch.reason()
    watch.file.write_text(watch.texts[1])
    assert watch.poll() == [("certificates_replaced", "")]
    assert watch.watcher.refusal is None


def test_watcher_reverted_bad_edit_clears_refusal(watch: Watch):
    watch.file.write_text("no config")
    watch.reason()
    watch.file.write_text(watch.texts[0])
    assert watch.poll() == []
    assert watch.watcher.refusal is None


def test_watcher_refusal_dates_from_first_bad_edit(watch: Watch):
    watch.file.write_text("no config")
    watch.reason()
    first = watch.watcher.refusal
    watch.clock.advance(60)
    watch.file.write_text("still no config")
    watch.reason()
    assert first is not None
    assert watch.watcher.refusal is not None
    assert watch.watcher.refusal.since_wall_ns == first.since_wall_ns


def test_watcher_reads_changing_file_once_it_rests(watch: Watch):
    watch.poll()
    watch.file.write_text("")
    watch.clock.texts = [watch.texts[1][:100], watch.texts[1]]
    assert watch.poll(1) == []
    assert watch.poll(3) == [("certificates_replaced", "")]


def test_watcher_thread_looks_and_stops(tmp_path: Path, identities: list[Identity]):
    watch = Watch(tmp_path, identities)
    watch.watcher.start()
    watch.watcher.stop()
    assert watch.watcher.join(timeout_seconds=10)
    assert isinstance(watch.clock, FakeClock)
