import argparse

import pytest

from loadtest.__main__ import COMMANDS, GONE_COMMANDS, main
from loadtest.commands.life import SCENARIOS
from loadtest.commands.options import setup_of
from loadtest.commands.swap import rows


def status_of(*arguments: str) -> object:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    return exit_.value.code


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["swap", "--preset=fast"], "invalid choice: 'fast'"),
        (["swap", "--rate=0"], "not a number above 0"),
        (["swap", "--rate=nan"], "not a number above 0"),
        (["swap", "--swaps=0"], "not a whole number above 0"),
        (["run", "--target=nowhere", "--rate=1", "--duration=1"], "not HOST:PORT"),
        (["run", "--target=a:99999", "--rate=1", "--duration=1"], "not HOST:PORT"),
        (["run", "--target=a:1", "--duration=1"], "--rate --saturation is required"),
        (["run", "--target=a:1", "--rate=1", "--saturation=1", "--duration=1"], "not allowed"),
        (["run", "--target=a:1", "--null", "--rate=1", "--duration=1"], "not allowed"),
        (["swap", "--command=serve {port}"], "the command of 'serve' lacks {base}"),
        (["bench", "--command=serve {base}"], "the command of 'serve' lacks {port}"),
        (["swap", "--saturation=80"], "'80' is above 1"),
        (["swap", "--arrivals=late"], "invalid choice: 'late'"),
        (["swap", "--json=/tmp"], "/tmp is a directory; name a file"),
        (["beside"], "arguments are required: --with"),
        (["beside", "--with=noise"], "invalid choice: 'noise'"),
        (["life"], "SCENARIO"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        ([], "COMMAND"),
    ],
)
def test_bad_command_line_exits_two_with_reason(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
):
    assert status_of(*arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("name", GONE_COMMANDS)
def test_command_that_is_gone_names_its_heir(capsys: pytest.CaptureFixture[str], name: str):
    assert main([name]) == 2
    assert GONE_COMMANDS[name] in COMMANDS
    assert f"python -m loadtest {GONE_COMMANDS[name]} --help" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--plot=a.png", "--neighbour", "--both"])
def test_swap_memory_refuses_options_of_a_load(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, option: str
):
    monkeypatch.setattr("loadtest.commands.swap.check_can_plot", lambda path: None)
    assert main(["swap", "--memory", option]) == 2
    assert f"{option.removesuffix('=a.png')} has no effect with --memory" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: str):
    assert status_of(command, "--help") == 0
    assert "--help" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command",
    [*sorted(COMMANDS.keys() - {"demo", "life"}), *(f"life {scenario}" for scenario in SCENARIOS)],
)
def test_every_measurement_writes_json(capsys: pytest.CaptureFixture[str], command: str):
    assert status_of(*command.split(), "--help") == 0
    assert "--json" in capsys.readouterr().out


def test_options_left_out_are_those_of_the_contract():
    parser = argparse.ArgumentParser()
    COMMANDS["swap"].add_arguments(parser)
    parsed = parser.parse_args([])
    ((preset, _),) = rows(parsed.preset, parsed.servers).items()
    setup = setup_of(parsed, preset)
    assert (setup.rate_per_second, setup.rows, setup.swaps) == (300, 100, 6)
    assert (setup.preset, setup.arrivals, parsed.repeats) == ("millpond", "poisson", 1)
    assert (setup.warm_up, setup.output_filter) == ("records", ())
