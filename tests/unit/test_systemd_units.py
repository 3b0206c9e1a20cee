"""The systemd units: checked by systemd itself, and against the program."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from serving.config.flags import FLAGS
from serving.supervisor.supervisor import PULSE_SECONDS

DIRECTORY = Path(__file__).parents[2] / "deploy" / "systemd"
UNITS = ("millpond.service", "millpond.socket", "millpond-http.socket")
SERVICE = (DIRECTORY / "millpond.service").read_text()
# The highest exposure by `systemd-analyze security`: from 0, none, to 10.
EXPOSURE_MAX = 2.0

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is not installed (apt-get install systemd)",
)


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """A copy of the units whose program exists, as verify requires."""
    for name in UNITS:
        text = (DIRECTORY / name).read_text().replace("/opt/millpond/bin/millpond", "/bin/true")
        (tmp_path / name).write_text(text)
    return tmp_path


def value_of(name: str) -> str:
    (value,) = re.findall(rf"^{name}=(.*)$", SERVICE, re.MULTILINE)
    return str(value)


@needs_systemd
def test_systemd_verifies_units(units: Path):
    paths = [str(units / name) for name in UNITS]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *paths],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    complaints = [line for line in done.stderr.splitlines() if "millpond" in line]
    assert complaints == []
    assert done.returncode == 0, done.stderr


@needs_systemd
def test_exposure_is_low(units: Path):
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", str(units / "millpond.service")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    found = re.search(r"Overall exposure level for millpond\.service: ([\d.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= EXPOSURE_MAX, done.stdout


def test_flags_of_unit_exist():
    names = re.findall(r"--(\w+)", value_of("ExecStart"))
    assert names
    assert set(names) <= FLAGS.keys()


def test_pulse_is_quicker_than_watchdog():
    assert int(value_of("WatchdogSec")) >= PULSE_SECONDS * 2


def test_stop_outlasts_drain():
    drain = FLAGS["drain_seconds"].default  # type: ignore[union-attr]
    assert int(value_of("TimeoutStopSec")) > 2 * drain


def test_ports_of_sockets_are_the_servers():
    grpc, http = ((DIRECTORY / name).read_text() for name in UNITS[1:])
    assert f"ListenStream={FLAGS['port'].default}\n" in grpc  # type: ignore[union-attr]
    assert "FileDescriptorName=grpc\n" in grpc
    assert "ListenStream=8501\n" in http
    assert "FileDescriptorName=rest\n" in http
