import json
import os
import socket
import subprocess
import sys

import pytest

from serving.base.tensorflow_package import Package
from serving.commands import serve, status
from serving.commands.argument_types import target
from serving.commands.cli import COMMANDS, main
from tests.unit.fresh_python import run_python


def test_cli_help_lists_every_command(capsys: pytest.CaptureFixture[str]):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert [command for command in COMMANDS if command not in out] == []


def test_cli_without_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 2


def test_cli_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]):
    assert main(["sevre"]) == 2
    assert "'sevre' is not a command" in capsys.readouterr().err


def test_cli_misspelt_command_is_guessed(capsys: pytest.CaptureFixture[str]):
    assert main(["predct"]) == 2
    assert capsys.readouterr().err == "millpond: 'predct' is not a command; did you mean predict?\n"


def serve_on_a_taken_port(log_format: str) -> "subprocess.CompletedProcess[str]":
    with socket.create_server(("127.0.0.1", 0)) as listener:
        flags = ["--model_base_path=/m", "--host=127.0.0.1", f"--log_format={log_format}"]
        flags += [f"--port={listener.getsockname()[1]}", "--rest_api_port=0"]
        return subprocess.run(
            [sys.executable, "-m", "serving", "serve", *flags],
            capture_output=True,
            text=True,
            check=False,
        )


def test_cli_taken_port_in_a_json_log_is_json():
    ended = serve_on_a_taken_port("json")
    assert ended.returncode == 1
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["starting", "serve_failed"]
    assert lines[1]["message"].startswith("millpond serve: ")


_WITHOUT_A_THREAD = """
import sys, threading
from serving.commands.cli import main

start = threading.Thread.start

def start_unless_control(thread):
    if thread.name == "control":
        raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = start_unless_control
sys.exit(main(sys.argv[1:]))
"""


def test_cli_out_of_threads_names_the_remedy():
    flags = ["--model_base_path=/m", "--host=127.0.0.1", "--port=0", "--rest_api_port=0"]
    flags += ["--allocator=glibc", "--arena=false", "--log_format=json"]
    ended = subprocess.run(
        [sys.executable, "-c", _WITHOUT_A_THREAD, "serve", *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    last = json.loads(ended.stderr.splitlines()[-1])
    assert (last["event"], "ulimit -u" in last["message"]) == ("serve_failed", True)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--model_base_path=s3://b/m"], "give --model_cache_directory"),
        (["--model_base_path=/m", "--admin_address=unix:/proc/a"], "can write to, or off"),
    ],
)
def test_cli_wrong_configuration_ends_a_start(flags: list[str], reason: str):
    ended = subprocess.run(
        [sys.executable, "-m", "serving", "serve", *flags, "--port=0", "--log_format=json"],
        capture_output=True,
        text=True,
        check=False,
        # As for a user without a home directory.
        env={**os.environ, "XDG_CACHE_HOME": "relative"},
    )
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert (ended.returncode, lines[-1]["event"]) == (2, "serve_failed")
    assert reason in lines[-1]["message"]
    assert {line["event"] for line in lines}.isdisjoint(
        {"admin_listening", "listening", "stop_failed"}
    )


def test_cli_taken_port_in_a_log_for_people_is_text():
    ended = serve_on_a_taken_port("human")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[1].startswith("millpond serve: ")


CLIENT_COMMANDS = [
    ["status"],
    ["predict", "m"],
    ["rollback", "m"],
    ["promote", "m"],
    ["allow", "m", "1"],
    ["capture", "m", "--output=/tmp/x"],
    ["config", "plan", "f"],
]


@pytest.mark.parametrize("command", CLIENT_COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize(
    "text", ["", ":", "host", "host:", ":8500", "host:0", "host:99999", "http://host:8500", "unix:"]
)
def test_cli_malformed_target_is_wrong_usage(
    command: list[str], text: str, capsys: pytest.CaptureFixture[str]
):
    assert main([*command, "--target", text]) == 2
    assert f"--target: {text!r} is neither HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["host:8500", "[::1]:1", "unix:/run/m.sock", "dns:///host:8500"])
def test_target_is_taken_as_it_is(text: str):
    assert target(text) == text


@pytest.mark.parametrize("command", [["predict"], ["rollback"], ["capture", "--output=/tmp/x"]])
def test_cli_empty_name_of_a_model_is_wrong_usage(
    command: list[str], capsys: pytest.CaptureFixture[str]
):
    assert main([*command, ""]) == 2
    assert "argument MODEL: the name of the model is empty" in capsys.readouterr().err


def test_cli_interrupted_command_ends_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupted(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(status, "run", interrupted)
    assert main(["status"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_cli_command_help_exits_zero(command: str, capsys: pytest.CaptureFixture[str]):
    assert main([command, "--help"]) == 0
    assert "usage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prefer_tflite_model"], "--prefer_tflite_model is refused"),
        (
            ["--model_base_path=/m", "--batching_parameters_file=/b"],
            "has no effect without --enable_batching",
        ),
        (["--modl_name=m"], "did you mean --model_name"),
        ([], "give one of --model_base_path"),
        (["--model_config_file=/nowhere"], "/nowhere: cannot be read"),
    ],
)
def test_cli_serve_wrong_usage_exits_two_with_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["serve", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("millpond serve: ")
    assert message in err


@pytest.mark.parametrize("arguments", [["serve", "--version"], ["--version"]])
def test_cli_version_prints_versions(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("millpond ")


def test_cli_version_prints_nothing_on_stderr():
    ended = subprocess.run(
        [sys.executable, "-m", "serving", "--version"], capture_output=True, text=True, check=True
    )
    assert ended.stdout.startswith("millpond ")
    assert ended.stderr == ""


def test_cli_version_lists_bundled_libraries(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    inside = {"jemalloc": "5.3.0", "nghttp2": "1.52.0"}
    monkeypatch.setattr(serve, "bundled_libraries", lambda: inside)
    pytest.importorskip("serving.data_plane._native")
    assert main(["--version"]) == 0
    assert "inside jemalloc 5.3.0, nghttp2 1.52.0\n" in capsys.readouterr().out


def test_cli_serve_refuses_other_tensorflow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(serve, "installed_package", lambda: Package("tensorflow", "2.20.1"))
    arguments = ["--model_base_path=/m", "--log_format=human", "--port=0"]
    before = dict(os.environ)
    assert main(["serve", *arguments]) == 1
    assert dict(os.environ) == before
    assert "pip install 'tensorflow>=2.21,<2.22'" in capsys.readouterr().err


def test_cli_serve_help_imports_nothing_heavy():
    run_python(
        "import sys\n"
        "from serving.commands.cli import main\n"
        "main(['serve', '--help'])\n"
        "heavy = {'tensorflow', 'numpy', 'grpc', 'google.protobuf', 'structlog', 'rich'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
