import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.base.clock import SystemClock
from serving.server.log_writer import LogWriter, unblock

PIPE_BYTES = 4096
LINE = "x" * 99 + "\n"


class Pipe:
    """A pipe of 4 KiB; nothing reads it until a test does."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        fcntl.fcntl(self.write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.text = ""

    def read_until(self, text: str) -> str:
        """Reads, with waits, up to the end of the first `text`."""
        while text not in self.text:
            piece = os.read(self.read_end, 65536)
            assert piece, f"the pipe ends without {text!r}"
            self.text += piece.decode()
        before, found, self.text = self.text.partition(text)
        return before + found

    def close_read_end(self) -> None:
        if self.read_end >= 0:
            os.close(self.read_end)
            self.read_end = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close_read_end()
    os.close(pipe.write_end)


def writer_of(descriptor: int, *, capacity_bytes: int = 1 << 20, may_block: bool) -> LogWriter:
    def report(count: int) -> None:
        made.write(f"dropped {count}\n")

    made = LogWriter(
        descriptor,
        may_block=may_block,
        on_dropped=report,
        capacity_bytes=capacity_bytes,
        clock=SystemClock(),
    )
    made.start()
    return made


@pytest.fixture
def writer(pipe: Pipe) -> Iterator[LogWriter]:
    """The writer keeps 2,000 bytes beside the pipe's content."""
    assert unblock(pipe.write_end)
    writer = writer_of(pipe.write_end, capacity_bytes=2_000, may_block=False)
    yield writer
    writer.close_within(0)


def test_line_is_in_the_pipe_when_write_returns(pipe: Pipe, writer: LogWriter):
    writer.write("first\n")
    # The caller's thread writes it, so a process that crashes now has written it.
    assert os.read(pipe.read_end, 100) == b"first\n"


def test_full_pipe_drops_lines_and_blocks_no_writer(pipe: Pipe, writer: LogWriter):
    for _ in range(1_000):
        writer.write(LINE)
    # 4,096 bytes in the pipe, 2,000 kept, and one line that is being written.
    assert 1_000 - 63 <= writer.dropped_count <= 1_000 - 59
    dropped_count = writer.dropped_count
    read = pipe.read_until(f"dropped {dropped_count}\n")
    assert read.count(LINE) == 1_000 - dropped_count
    writer.write("after\n")
    pipe.read_until("after\n")
    assert writer.dropped_count == dropped_count


def test_lines_keep_order_for_slow_reader(pipe: Pipe):
    assert unblock(pipe.write_end)
    writer = writer_of(pipe.write_end, may_block=False)
    for number in range(2_000):
        writer.write(f"line {number}\n")
    text = pipe.read_until("line 1999\n")
    assert text.split("\n")[:-1] == [f"line {number}" for number in range(2_000)]
    assert writer.close_within(60)


def test_line_larger_than_pipe_arrives_whole(pipe: Pipe):
    assert unblock(pipe.write_end)
    writer = writer_of(pipe.write_end, may_block=False)
    line = "y" * 20_000 + "\n"
    writer.write(line)
    assert pipe.read_until("\n") == line
    assert writer.close_within(60)


def test_end_writes_kept_lines(pipe: Pipe, writer: LogWriter):
    for _ in range(50):
        writer.write(LINE)
    reader = threading.Thread(target=pipe.read_until, args=(LINE * 50,))
    reader.start()
    assert writer.close_within(60)
    reader.join()


def test_end_is_bounded_when_nothing_reads(writer: LogWriter):
    for _ in range(50):
        writer.write(LINE)
    assert not writer.close_within(0.05)
    assert not writer._thread.is_alive()


def test_lost_reader_loses_lines_without_error(pipe: Pipe, writer: LogWriter):
    pipe.close_read_end()
    for _ in range(100):
        writer.write(LINE)
    assert writer.close_within(60)


def test_file_is_written_by_the_thread(tmp_path: Path):
    with (tmp_path / "log").open("wb") as file:
        assert not unblock(file.fileno())
        writer = writer_of(file.fileno(), may_block=True)
        for _ in range(100):
            writer.write(LINE)
        assert writer.close_within(60)
    assert (tmp_path / "log").read_text() == LINE * 100


def test_text_that_is_not_unicode_is_escaped(pipe: Pipe, writer: LogWriter):
    writer.write("a\udcffb\n")
    assert pipe.read_until("\n") == "a\\udcffb\n"


def test_other_views_of_an_unblocked_pipe_still_block(pipe: Pipe):
    other = os.dup(pipe.write_end)
    assert unblock(pipe.write_end)
    assert (os.get_blocking(pipe.write_end), os.get_blocking(other)) == (False, True)
    os.close(other)
