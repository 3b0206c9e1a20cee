import io
import json

from serving.starting_line import starting_line, write_starting_line

WALL_NS = 1_700_000_000 * 10**9


def test_starting_line_for_machines_is_json() -> None:
    for log_format in ("json", "auto"):
        line = json.loads(starting_line("0.1.0", log_format, WALL_NS, is_terminal=False))
        assert (line["event"], line["level"]) == ("starting", "info")
        assert line["message"] == "millpond 0.1.0 starting ..."
        assert line["timestamp"] == "2023-11-14T22:13:20Z"


def test_starting_line_for_people_is_text() -> None:
    for log_format, is_terminal in (("human", False), ("auto", True)):
        line = starting_line("0.1.0", log_format, WALL_NS, is_terminal=is_terminal)
        assert line == "millpond 0.1.0 starting ..."


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_starting_line_without_a_reader_is_lost() -> None:
    write_starting_line(FullDisk(), "0.1.0", "json", WALL_NS)
