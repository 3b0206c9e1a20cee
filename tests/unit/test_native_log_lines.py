import os

import pytest
from structlog.testing import capture_logs

from serving.native_log_lines import native_lines_as_events

CUDA = b"E0000 00:00:1 1 cuda_platform.cc:52] failed call to cuInit: UNKNOWN ERROR (303)\n"


def test_native_lines_become_events(capfd: pytest.CaptureFixture[str]) -> None:
    with capture_logs() as logs, native_lines_as_events():
        os.write(2, CUDA + b"\nW0000 file.cc:1] something is odd\n" + b'{"event": "ours"}\n')
    assert [(log["event"], log["line"]) for log in logs] == [
        ("native_log", "W0000 file.cc:1] something is odd")
    ]
    assert capfd.readouterr().err == '{"event": "ours"}\n'


def test_native_lines_before_an_error_are_kept(capfd: pytest.CaptureFixture[str]) -> None:
    @native_lines_as_events()
    def fail() -> None:
        os.write(2, b"the reason\n")
        raise OSError("no such library")

    with capture_logs() as logs, pytest.raises(OSError, match="no such library"):
        fail()
    assert [log["line"] for log in logs] == ["the reason"]
    os.write(2, b"as before\n")
    assert capfd.readouterr().err == "as before\n"
