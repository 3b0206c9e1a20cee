"""The completion scripts, in the shells that read them."""

import argparse
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from serving.commands.cli import COMMANDS, main
from serving.commands.completion import SHELLS, make_root_parser, make_serve_parser
from serving.config.flags import FLAGS, Flag, RefusedFlag
from tests.unit.fresh_python import run_python

# Asks bash's completion function for the candidates of the last word.
ASK_BASH = """source {script}
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_shtab_millpond
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ASK_FISH = """source {script}
complete -C {line}
"""
REGISTER_IN_ZSH = """fpath=({script.parent} $fpath)
autoload -U compinit
compinit -u -D
print $_comps[millpond]
"""

CASES = [
    (["st"], {"status"}),
    (["serve", "--enable_bat"], {"--enable_batching"}),
    (["serve", "--allocator", ""], {"jemalloc", "glibc"}),
    (["serve", "--model_config_file", "mod"], {"models.config"}),
    (["config", ""], {"plan", "apply"}),
    (["config", "plan", "--set"], {"--settings"}),
    (["completion", ""], set(SHELLS)),
    (["help", "roll"], {"rollout", "rollback"}),
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Returns a directory with a file to complete."""
    (tmp_path / "models.config").touch()
    return tmp_path


def script_of(shell: str, place: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", shell]) == 0
    # zsh's name for it.
    path = place / "_millpond"
    path.write_text(capsys.readouterr().out)
    return path


def ask(command: list[str], place: Path) -> list[str]:
    """Runs a shell and returns the lines that it prints."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed: scripts/install_packages.sh test")
    ended = subprocess.run(
        command,
        cwd=place,
        env={"HOME": str(place), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


@pytest.mark.parametrize(("words", "expected"), CASES, ids=[" ".join(words) for words, _ in CASES])
def test_bash_completes(
    words: list[str], expected: set[str], place: Path, capsys: pytest.CaptureFixture[str]
):
    script = script_of("bash", place, capsys)
    question = ASK_BASH.format(script=script, words=shlex.join(["millpond", *words]))
    assert set(ask(["bash", "--norc", "-c", question], place)) == expected


@pytest.mark.parametrize(("words", "expected"), CASES, ids=[" ".join(words) for words, _ in CASES])
def test_fish_completes(
    words: list[str], expected: set[str], place: Path, capsys: pytest.CaptureFixture[str]
):
    script = script_of("fish", place, capsys)
    line = shlex.quote(" ".join(["millpond", *words]))
    lines = ask(["fish", "-N", "-c", ASK_FISH.format(script=script, line=line)], place)
    assert {line.partition("\t")[0] for line in lines} == expected


def test_zsh_registers_the_completion(place: Path, capsys: pytest.CaptureFixture[str]):
    script = script_of("zsh", place, capsys)
    assert ask(["zsh", "-f", "-n", str(script)], place) == []
    assert ask(["zsh", "-f", "-c", REGISTER_IN_ZSH.format(script=script)], place) == ["_millpond"]


def test_parser_of_serve_has_all_flags_but_refused():
    options = {
        option for action in make_serve_parser()._actions for option in action.option_strings
    }
    named = {option.removeprefix("--") for option in options} - {"-h", "help"}
    assert named == {flag.name for flag in FLAGS.values() if isinstance(flag, Flag)}
    assert not named & {flag.name for flag in FLAGS.values() if isinstance(flag, RefusedFlag)}


def test_root_parser_has_every_command():
    (commands,) = (
        action
        for action in make_root_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    assert list(commands.choices) == list(COMMANDS)


def test_completion_of_an_unknown_shell_is_wrong_usage(capsys: pytest.CaptureFixture[str]):
    assert main(["completion", "csh"]) == 2
    assert "invalid choice: 'csh'" in capsys.readouterr().err


def test_completion_imports_no_tensorflow():
    run_python(
        "import sys\n"
        "from serving.commands.cli import main\n"
        "main(['completion', 'bash'])\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
