import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from serving.server.logs import configure_logs, write_last_line
from tests.unit.fakes.terminals import Terminal


@pytest.fixture(autouse=True)
def structlog_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_logs_json_is_one_object_a_line():
    stream = io.StringIO()
    configure_logs("json", stream)
    structlog.get_logger().info("listening", port=8500, path=Path("/m"))
    structlog.get_logger().warning("second")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["event"], first["port"], first["path"]) == ("listening", 8500, "/m")
    assert (first["level"], second["level"]) == ("info", "warning")
    assert first["timestamp"].endswith("Z")


def test_logs_json_exception_stays_on_one_line():
    stream = io.StringIO()
    configure_logs("json", stream)
    try:
        raise ValueError("bad\nvalue")
    except ValueError:
        structlog.get_logger().exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError" in json.dumps(json.loads(line)["exception"])


@pytest.mark.parametrize(("stream", "is_json"), [(io.StringIO(), True), (Terminal(), False)])
def test_logs_auto_is_json_except_on_a_terminal(stream: io.StringIO, is_json: bool):
    configure_logs("auto", stream)
    structlog.get_logger().info("ready", port=1)
    assert stream.getvalue().startswith("{") == is_json


def test_logs_human_names_event_and_values():
    stream = io.StringIO()
    configure_logs("human", stream)
    structlog.get_logger().info("ready", port=8500)
    assert "ready" in stream.getvalue()
    assert "port=8500" in stream.getvalue()


@pytest.mark.parametrize("method", ["write", "flush"])
def test_unread_logs_are_lost_without_error(method: str, monkeypatch: pytest.MonkeyPatch):
    def refuse(*arguments: object) -> int:
        raise BrokenPipeError

    stream = io.StringIO()
    configure_logs("json", stream)
    log = structlog.get_logger()
    with monkeypatch.context() as broken:
        broken.setattr(stream, method, refuse)
        log.info("lost")
    log.info("kept")
    assert stream.getvalue().splitlines()[-1].count("kept") == 1


def test_human_logs_escape_terminal_controls():
    stream = Terminal()
    configure_logs("human", stream)
    structlog.get_logger().info("ready", model="a\x9b31m\u202e")
    assert "model=a\\x9b31m\\u202e" in re.sub(r"\x1b\[\d*m", "", stream.getvalue())


@pytest.mark.parametrize("log_format", ["human", "json"])
def test_last_line_has_the_format_of_the_log(log_format: str, capfd: pytest.CaptureFixture[str]):
    configure_logs(log_format, io.StringIO())
    write_last_line("second_signal", "exiting at once")
    text = capfd.readouterr().err
    if log_format == "json":
        line = json.loads(text)
        assert (line["event"], line["level"]) == ("second_signal", "warning")
        text = f"{line['message']}\n"
    assert text == "exiting at once\n"
