import fcntl
import json
import os
import signal
import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from serving.server.native_line_reader import WAITING_BYTES_MAX, formatted, pass_on
from serving.server.native_log_lines import native_lines_as_events

CUDA = b"E0000 00:00:1 1 cuda_platform.cc:52] failed call to cuInit: UNKNOWN ERROR (303)\n"
FATAL = "F0000 cpu_feature_guard.cc:42] compiled to use AVX instructions, which are not available"
PIPE_BYTES = 4096


def lost(text: str) -> None:
    pytest.fail(f"handed over: {text}")


def test_native_lines_become_events(capfd: pytest.CaptureFixture[str]) -> None:
    with native_lines_as_events(is_human=False, write=lost):
        os.write(2, CUDA + b"\nW0000 file.cc:1] something is odd\n")
    (line,) = map(json.loads, capfd.readouterr().err.splitlines())
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "native_log",
        "level": "info",
        "line": "W0000 file.cc:1] something is odd",
    }


def test_native_lines_for_people_are_text(capfd: pytest.CaptureFixture[str]) -> None:
    with native_lines_as_events(is_human=True, write=lost):
        os.write(2, CUDA + b"something is odd\n")
    assert capfd.readouterr().err == "something is odd\n"


def test_native_lines_before_an_error_are_kept(capfd: pytest.CaptureFixture[str]) -> None:
    @native_lines_as_events(is_human=True, write=lost)
    def fail() -> None:
        os.write(2, b"the reason\n")
        raise OSError("no such library")

    with pytest.raises(OSError, match="no such library"):
        fail()
    os.write(2, b"as before\n")
    assert capfd.readouterr().err == "the reason\nas before\n"


@pytest.mark.parametrize("log_format", ["human", "json"])
@pytest.mark.parametrize("death", [signal.SIGABRT, signal.SIGKILL, signal.SIGSEGV])
def test_last_words_of_a_process_that_dies_arrive(death: signal.Signals, log_format: str) -> None:
    program = f"""
import os
from serving.server.native_log_lines import native_lines_as_events
with native_lines_as_events(is_human={log_format == "human"}, write=print):
    os.write(2, {(FATAL + chr(10)).encode() + b"terminate called"!r})
    os.kill(os.getpid(), {int(death)})
"""
    # `run` reads to the end of standard error, which the reader keeps open until it has written.
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.returncode == -death
    lines = ended.stderr.splitlines()
    texts = lines if log_format == "human" else [json.loads(line)["line"] for line in lines]
    assert texts == [FATAL, "terminate called"]


def test_native_lines_for_a_full_pipe_are_handed_over() -> None:
    """This runs in a process of its own, because descriptor 2 is the full pipe."""
    program = """
import os, sys
from serving.server.native_log_lines import native_lines_as_events
rest = []
with native_lines_as_events(is_human=True, write=rest.append):
    for number in range(2_000):
        os.write(2, b"line %d\\n" % number)
print("".join(rest), end="")
"""
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.write(write_end, b"#" * PIPE_BYTES)
    os.set_blocking(write_end, False)
    ended = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=write_end, check=True
    )
    assert os.read(read_end, 2 * PIPE_BYTES) == b"#" * PIPE_BYTES
    assert ended.stdout.decode().splitlines() == [f"line {number}" for number in range(2_000)]
    os.close(read_end)
    os.close(write_end)


def test_start_waits_for_no_heir_of_the_descriptor(capfd: pytest.CaptureFixture[str]) -> None:
    """A process that is started within the block has the pipe as its standard error."""
    with native_lines_as_events(is_human=True, write=lost):
        heir = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    heir.communicate(b"\n")
    assert heir.returncode == 0
    assert capfd.readouterr().err == ""


def test_native_lines_without_a_reader_stay(capfd: pytest.CaptureFixture[str]) -> None:
    with (
        capture_logs() as logs,
        native_lines_as_events(is_human=False, write=lost, command="/nowhere/python"),
    ):
        os.write(2, b"as it is\n")
    assert [log["event"] for log in logs] == ["native_lines_not_read"]
    assert capfd.readouterr().err == "as it is\n"


def test_lines_are_whole_however_they_arrive() -> None:
    pieces = [b"one\ntw", b"", b"never read"]
    written: list[bytes] = []

    def write(data: bytes) -> bytes:
        written.append(data)
        return b""

    rest = pass_on(lambda: pieces.pop(0), write, lambda lines: formatted(lines, "human", ""))
    assert (written, rest) == ([b"one\n", b"tw\n"], b"")


def test_lines_wait_for_space_and_are_bounded() -> None:
    pieces = [b"%d%s\n" % (n % 10, b"x" * 100_000) for n in range(30)] + [b""]
    accepted: list[bytes] = []
    has_space = False

    def write(data: bytes) -> bytes:
        if not has_space:
            return data
        accepted.append(data)
        return b""

    def read() -> bytes:
        nonlocal has_space
        has_space = len(pieces) == 1
        return pieces.pop(0)

    pass_on(read, write, lambda lines: formatted(lines, "human", ""), lambda: True)
    written = b"".join(accepted)
    assert written.endswith(b"x\n")
    assert WAITING_BYTES_MAX < len(written) < WAITING_BYTES_MAX + 200_000


def test_waiting_line_is_written_without_further_input() -> None:
    pieces = [b"one\n", b""]
    answers = [False, True]
    tries: list[bytes] = []

    def write(data: bytes) -> bytes:
        tries.append(data)
        return data if len(tries) == 1 else b""

    pass_on(
        lambda: pieces.pop(0),
        write,
        lambda lines: formatted(lines, "human", ""),
        lambda: answers.pop(0),
    )
    assert tries[:2] == [b"one\n", b"one\n"]


def test_short_writes_lose_nothing() -> None:
    pieces = [b"one\n", b"two\n", b""]
    written = b""

    def write_three_bytes(data: bytes) -> bytes:
        nonlocal written
        written += data[:3]
        return data[3:]

    rest = pass_on(
        lambda: pieces.pop(0), write_three_bytes, lambda lines: formatted(lines, "human", "")
    )
    assert written + rest == b"one\ntwo\n"
