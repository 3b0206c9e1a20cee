"""Runs fuzz targets with new seeds for a given time, and prints how to replay each failure.

Usage: run_fuzz_targets.py --seconds N --work FOLDER --build FOLDER... [--jobs N] [NAME...]

Each NAME_fuzz of the build folders runs for N seconds, and so do the random sequences of the unit
tests, as NAME "sequences". FOLDER keeps the failures, the logs and the inputs with new coverage.
"""

from __future__ import annotations

import argparse
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

CORPORA = Path("tests/native/corpus")
SEQUENCES = "sequences"
SEQUENCE_TESTS = (
    "tests/unit/test_version_life_sequences.py",
    "tests/unit/test_swap_timeline_sequences.py",
    "tests/unit/test_manager.py::TestManagerMachine",
)


@dataclass(frozen=True)
class Outcome:
    """The end of one target: `replay` is a command, empty if nothing failed."""

    name: str
    seed: int
    replay: str
    log: Path


@dataclass(frozen=True)
class Run:
    """The folder and the time of a run, and the source of its seeds."""

    work: Path
    seconds: float
    next_seed: Callable[[], int]

    def log(self, name: str) -> Path:
        return self.work / f"{name}.log"


def executables(builds: Sequence[Path]) -> Mapping[str, Path]:
    """Returns the executable of each target: the one of the first build that has the target."""
    found: dict[str, Path] = {}
    for build in builds:
        for path in sorted(build.glob("tests/native/fuzz/*_fuzz")):
            found.setdefault(path.name.removesuffix("_fuzz"), path)
    return found


def run_executable(name: str, executable: Path, run: Run) -> Outcome:
    seed = run.next_seed()
    failures = run.work / "failures"
    grown = run.work / "corpus" / name
    for folder in (failures, grown):
        folder.mkdir(parents=True, exist_ok=True)
    before = set(failures.iterdir())
    command = [
        str(executable),
        f"-max_total_time={run.seconds:g}",
        f"-seed={seed}",
        f"-artifact_prefix={failures}/{name}-",
        str(grown),
        str(CORPORA / name),
    ]
    with run.log(name).open("wb") as log:
        status = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
    if status == 0:
        return Outcome(name, seed, "", run.log(name))
    inputs = sorted(set(failures.glob(f"{name}-*")) - before)
    # A target that does not reach both verdicts has no failing input, so its whole run is replayed.
    replay = [str(executable), str(inputs[-1])] if inputs else command
    return Outcome(name, seed, shlex.join(replay), run.log(name))


def run_sequences(run: Run) -> Outcome:
    """Repeats the random sequences, each time with another seed, until the time is over."""
    end = time.monotonic() + run.seconds
    log = run.log(SEQUENCES)
    while True:
        seed = run.next_seed()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += [f"--hypothesis-seed={seed}", "--hypothesis-profile=fuzz", *SEQUENCE_TESTS]
        with log.open("wb") as output:
            status = subprocess.run(command, stdout=output, stderr=output, check=False).returncode
        if status != 0:
            return Outcome(SEQUENCES, seed, shlex.join(command), log)
        if time.monotonic() >= end:
            return Outcome(SEQUENCES, seed, "", log)


def report(outcome: Outcome) -> None:
    lines = outcome.log.read_text(errors="replace").splitlines()
    if not outcome.replay:
        print(f"{outcome.name}: passed, seed {outcome.seed}: {''.join(lines[-1:])}", flush=True)
        return
    print(f"{outcome.name}: FAILED, seed {outcome.seed}; the end of {outcome.log}:")
    print("\n".join(f"  {line}" for line in lines[-30:]))
    print(f"replay with: {outcome.replay}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--build", type=Path, action="append", required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args(arguments)
    found = executables(options.build)
    names = options.names or [*found, SEQUENCES]
    if unknown := [name for name in names if name not in found and name != SEQUENCES]:
        parser.error(f"unknown target {unknown[0]!r}; one of: {', '.join([*found, SEQUENCES])}")
    options.work.mkdir(parents=True, exist_ok=True)
    run = Run(options.work, options.seconds, lambda: random.SystemRandom().randrange(1, 2**31))

    def one(name: str) -> bool:
        is_sequences = name == SEQUENCES
        outcome = run_sequences(run) if is_sequences else run_executable(name, found[name], run)
        report(outcome)
        return not outcome.replay

    with ThreadPoolExecutor(options.jobs) as pool:
        passed = list(pool.map(one, names))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
