import fcntl
import json
import os
from pathlib import Path

from serving.server.starting_line import starting_line, take_unwritten_line, write_starting_line

WALL_NS = 1_700_000_000 * 10**9
PIPE_BYTES = 4096


def test_starting_line_for_machines_is_json() -> None:
    line = json.loads(starting_line("0.1.0", WALL_NS, is_human=False))
    assert (line["event"], line["level"]) == ("starting", "info")
    assert line["message"] == "millpond 0.1.0 starting ..."
    assert line["timestamp"] == "2023-11-14T22:13:20Z"


def test_starting_line_for_people_is_text() -> None:
    line = starting_line("0.1.0", WALL_NS, is_human=True)
    assert line == "millpond 0.1.0 starting ...\n"


def test_starting_line_is_written_at_once() -> None:
    read_end, write_end = os.pipe()
    environment: dict[str, str] = {}
    write_starting_line(write_end, "starting\n", environment)
    assert os.read(read_end, 100) == b"starting\n"
    assert (take_unwritten_line(environment), environment) == ("", {})
    os.close(read_end)
    os.close(write_end)


def test_starting_line_for_a_full_pipe_is_kept() -> None:
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.write(write_end, b"#" * PIPE_BYTES)
    environment: dict[str, str] = {}
    write_starting_line(write_end, "starting\n", environment)
    # Other processes share the pipe: for them it still blocks.
    assert os.get_blocking(write_end)
    assert os.read(read_end, 2 * PIPE_BYTES) == b"#" * PIPE_BYTES
    assert (take_unwritten_line(environment), environment) == ("starting\n", {})
    os.close(read_end)
    os.close(write_end)


def test_starting_line_without_a_reader_is_lost() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    environment: dict[str, str] = {}
    write_starting_line(write_end, "starting\n", environment)
    assert (take_unwritten_line(environment), environment) == ("", {})
    os.close(write_end)


def test_starting_line_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    environment: dict[str, str] = {}
    with path.open("wb", buffering=0) as file:
        for _ in range(2):
            write_starting_line(file.fileno(), "starting\n", environment)
    assert path.read_text() == "starting\n"


def test_starting_line_follows_file_contents(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb", buffering=0) as file:
        file.write(b"earlier\n")
        write_starting_line(file.fileno(), "starting\n", {})
    assert path.read_text() == "earlier\nstarting\n"


def test_starting_line_without_standard_error_is_lost() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    os.close(write_end)
    write_starting_line(write_end, "starting\n", {})
