"""`make fuzz` runs each target of the builds, and prints how to replay a failure."""

from pathlib import Path

import pytest
import run_fuzz_targets
from run_fuzz_targets import Run

REPOSITORY = Path(__file__).parents[2]
PASSES = 'echo "$@"\n'
FAILS = """\
for argument in "$@"; do
  case "$argument" in -artifact_prefix=*) echo bad >"${argument#*=}crash-1" ;; esac
done
exit 77
"""
REACHES_ONE_VERDICT = "exit 1\n"


@pytest.fixture
def build(tmp_path: Path) -> Path:
    (tmp_path / "build/tests/native/fuzz").mkdir(parents=True)
    return tmp_path / "build"


def add_target(build: Path, name: str, script: str) -> Path:
    path = build / f"tests/native/fuzz/{name}_fuzz"
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)
    return path


def run_all(build: Path, tmp_path: Path, *names: str) -> int:
    arguments = ["--seconds=3", f"--work={tmp_path / 'work'}", f"--build={build}", *names]
    return run_fuzz_targets.main(arguments)


def test_fuzz_target_runs_with_time_seed_and_corpora(build: Path, tmp_path: Path):
    executable = add_target(build, "wire", PASSES)
    run = Run(tmp_path, 3, lambda: 5)
    outcome = run_fuzz_targets.run_executable("wire", executable, run)
    assert not outcome.replay
    assert outcome.log.read_text().split() == [
        "-max_total_time=3",
        "-seed=5",
        f"-artifact_prefix={tmp_path}/failures/wire-",
        f"{tmp_path}/corpus/wire",
        "tests/native/corpus/wire",
    ]


def test_fuzz_failure_prints_the_replay(
    build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    add_target(build, "sound", PASSES)
    bad = add_target(build, "bad", FAILS)
    assert run_all(build, tmp_path, "sound", "bad") == 1
    printed = capsys.readouterr().out
    assert "sound: passed, seed" in printed
    assert f"replay with: {bad} {tmp_path}/work/failures/bad-crash-1" in printed


def test_fuzz_failure_without_input_replays_the_run(
    build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    vacuous = add_target(build, "vacuous", REACHES_ONE_VERDICT)
    assert run_all(build, tmp_path, "vacuous") == 1
    assert f"replay with: {vacuous} -max_total_time=3 -seed=" in capsys.readouterr().out


def test_fuzz_replays_no_input_of_an_earlier_run(build: Path, tmp_path: Path):
    executable = add_target(build, "bad", FAILS)
    run = Run(tmp_path, 3, lambda: 5)
    first = run_fuzz_targets.run_executable("bad", executable, run)
    add_target(build, "bad", REACHES_ONE_VERDICT)
    second = run_fuzz_targets.run_executable("bad", executable, run)
    assert first.replay.endswith("bad-crash-1")
    assert "crash-1" not in second.replay


def test_fuzz_prefers_the_first_build(build: Path, tmp_path: Path):
    second = tmp_path / "second"
    (second / "tests/native/fuzz").mkdir(parents=True)
    first_wire = add_target(build, "wire", PASSES)
    add_target(second, "wire", PASSES)
    slow = add_target(second, "tensorflow", PASSES)
    found = run_fuzz_targets.executables([build, second])
    assert found == {"wire": first_wire, "tensorflow": slow}


def test_fuzz_refuses_an_unknown_target(
    build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    add_target(build, "wire", PASSES)
    with pytest.raises(SystemExit):
        run_all(build, tmp_path, "wrie")
    assert "unknown target 'wrie'; one of: wire, sequences, properties" in capsys.readouterr().err


@pytest.mark.parametrize("status", [0, 1])
def test_fuzz_runs_connections_with_time_and_seed(build: Path, tmp_path: Path, status: int):
    executable = build / "tests/native/wire_fuzz_test"
    executable.write_text(
        f'#!/bin/sh\necho "$MILLPOND_WIRE_FUZZ_SECONDS $MILLPOND_WIRE_FUZZ_SEED"\nexit {status}\n'
    )
    executable.chmod(0o755)
    found = run_fuzz_targets.executables([build])
    outcome = run_fuzz_targets.run_connections(found["connections"], Run(tmp_path, 3, lambda: 5))
    assert outcome.log.read_text() == "3 5\n"
    assert outcome.replay.endswith(f"SEED=5 {executable}" if status else "")
    assert bool(outcome.replay) == bool(status)


def test_fuzz_runs_each_file_of_hypothesis():
    sequences, properties = (
        {
            path.name
            for path in run_fuzz_targets.files_of_hypothesis(run_fuzz_targets.UNIT_TESTS, name)
        }
        for name in (run_fuzz_targets.SEQUENCES, run_fuzz_targets.PROPERTIES)
    )
    assert {"test_manager.py", "test_version_life_sequences.py"} <= sequences
    assert "test_rest_paths.py" in properties
    assert not sequences & properties


@pytest.mark.parametrize(("limit", "is_passed"), [(10, True), (0, False)])
def test_fuzz_draws_new_examples_of_a_property(tmp_path: Path, limit: int, is_passed: bool):
    (tmp_path / "conftest.py").write_text(
        "from hypothesis import settings\nsettings.register_profile('fuzz', max_examples=10)\n"
    )
    (tmp_path / "test_property.py").write_text(
        "from hypothesis import given, strategies\n"
        "@given(strategies.integers(1, 9))\n"
        f"def test_property(n):\n    assert n < {limit}\n"
        "def test_other():\n    raise AssertionError\n"
    )
    run = Run(tmp_path, 0, lambda: 5)
    outcome = run_fuzz_targets.run_hypothesis(run_fuzz_targets.PROPERTIES, run, [tmp_path])
    assert (not outcome.replay) == is_passed, outcome.log.read_text()
    assert is_passed or "--hypothesis-seed=5" in outcome.replay


def test_fuzz_file_without_a_property_is_no_finding(tmp_path: Path):
    (tmp_path / "conftest.py").write_text(
        "from hypothesis import settings\nsettings.register_profile('fuzz', max_examples=10)\n"
    )
    (tmp_path / "test_helper.py").write_text(
        "from hypothesis import strategies\n\ndef test_other():\n    raise AssertionError\n"
    )
    run = Run(tmp_path, 0, lambda: 5)
    outcome = run_fuzz_targets.run_hypothesis(run_fuzz_targets.PROPERTIES, run, [tmp_path])
    assert not outcome.replay, outcome.log.read_text()
    assert "1 deselected" in outcome.log.read_text()


def test_fuzz_targets_have_a_corpus_and_a_smoke_run():
    fuzz = REPOSITORY / "tests/native/fuzz"
    names = {path.name.removesuffix("_fuzz.cc") for path in fuzz.glob("*_fuzz.cc")}
    listed = (fuzz / "CMakeLists.txt").read_text()
    assert names == {path.name for path in (REPOSITORY / run_fuzz_targets.CORPORA).iterdir()}
    assert all(f"millpond_add_fuzz_target({name} " in listed for name in names)
