"""The options that name servers: NAME=CMD, CMD and NAME=FLAGS."""

import argparse

import pytest

from loadtest.commands.given_servers import (
    server_command,
    server_commands,
    server_flags,
    swapping_command,
    this_command,
)
from loadtest.commands.turns import TURNS
from serving.base.errors import InvalidConfig


def test_command_is_split_at_first_equals_sign():
    assert server_command("old=serve --port={port}") == ("old", "serve --port={port}")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("serve {port}", "serve"),
        ("/opt/tfs/tensorflow_model_server --port={port}", "tensorflow_model_server"),
        ("env A=b serve {port}", "env"),
    ],
)
def test_command_without_name_is_named_by_program(text: str, name: str):
    assert server_command(text) == (name, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not NAME=CMD"),
        ("=serve {port}", "is not NAME=CMD"),
        ("old= ", "is not NAME=CMD"),
        ("old=serve --port=8500", "the command of 'old' lacks {port}"),
        ("serve --port=8500", "the command of 'serve' lacks {port}"),
    ],
)
def test_malformed_command_is_refused(text: str, words: str):
    with pytest.raises(argparse.ArgumentTypeError) as error:
        server_command(text)
    assert words in str(error.value)


def test_swapping_command_needs_base_path():
    text = "mine=serve {port} {base}"
    assert swapping_command(text) == server_command(text)
    with pytest.raises(argparse.ArgumentTypeError, match=r"the command of 'mine' lacks \{base\}"):
        swapping_command("mine=serve {port}")


def test_flags_are_of_this_checkouts_server():
    assert server_flags("fast=--a=1 --b") == ("fast", f"{this_command()} --a=1 --b")
    assert server_flags("plain=") == ("plain", this_command())


@pytest.mark.parametrize("text", ["--a=1", "=--a", "--enable_batching"])
def test_flags_without_a_name_are_refused(text: str):
    with pytest.raises(argparse.ArgumentTypeError, match="is not NAME=FLAGS"):
        server_flags(text)


def test_default_server_is_that_of_this_checkout():
    ((name, command),) = server_commands(None).items()
    assert name == "this"
    assert server_command(f"this={command}") == ("this", command)


def test_name_given_twice_is_refused():
    with pytest.raises(InvalidConfig, match="duplicate name 'a'"):
        server_commands([("a", "x {port}"), ("b", "y {port}"), ("a", "z {port}")])


def test_servers_of_turns_are_commands_and_flags():
    parser = argparse.ArgumentParser()
    TURNS.add_arguments(parser)
    parsed = parser.parse_args(["--command", "a=serve {port}", "--flags", "b=--x"])
    assert (parsed.rounds, parsed.seconds, parsed.table_rows) == (9, 0.7, 300_000)
    assert [name for name, _ in parsed.servers] == ["a", "b"]
