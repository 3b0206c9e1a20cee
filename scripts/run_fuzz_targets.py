"""Runs fuzz targets with new seeds for a given time, and prints how to replay each failure.

Usage: run_fuzz_targets.py --seconds N --work FOLDER --build FOLDER... [--jobs N] [NAME...]

Each NAME_fuzz of the build folders runs for N seconds. So do wire_fuzz_test, as NAME "connections", and
the unit tests of Hypothesis, as two names: "sequences" are the random sequences, "properties" are the
others. FOLDER keeps the failures, the logs and the inputs with new coverage.
"""

from __future__ import annotations

import argparse
import random
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

CORPORA = Path("tests/native/corpus")
UNIT_TESTS = (Path("tests/unit"), Path("tests/fleet"))
CONNECTIONS = "connections"
SEQUENCES = "sequences"
PROPERTIES = "properties"
NO_TESTS_COLLECTED = 5
"""The exit status of pytest."""
IMPORT = re.compile(r"^(from|import) hypothesis\b", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """The end of one target: `replay` is a command, empty if nothing failed."""

    name: str
    seed: int
    replay: str
    log: Path


@dataclass(frozen=True)
class Run:
    """The folder, the time and the source of seeds of a run."""

    work: Path
    seconds: float
    next_seed: Callable[[], int]

    def log(self, name: str) -> Path:
        return self.work / f"{name}.log"


def executables(builds: Sequence[Path]) -> Mapping[str, Path]:
    """The executable of each target: the one of the first build that has the target."""
    found: dict[str, Path] = {}
    for build in builds:
        for path in sorted(build.glob("tests/native/fuzz/*_fuzz")):
            found.setdefault(path.name.removesuffix("_fuzz"), path)
        if (wire := build / "tests/native/wire_fuzz_test").is_file():
            found.setdefault(CONNECTIONS, wire)
    return found


def run_connections(executable: Path, run: Run) -> Outcome:
    """Runs the fuzzer of whole connections, whose failure names the seed that repeats it."""
    seed = run.next_seed()
    command = ["env", f"MILLPOND_WIRE_FUZZ_SECONDS={run.seconds:g}"]
    command += [f"MILLPOND_WIRE_FUZZ_SEED={seed}", str(executable)]
    with run.log(CONNECTIONS).open("wb") as log:
        status = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
    replay = shlex.join(command) if status != 0 else ""
    return Outcome(CONNECTIONS, seed, replay, run.log(CONNECTIONS))


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


def files_of_hypothesis(folders: Sequence[Path], name: str) -> Sequence[Path]:
    """The test files that use Hypothesis: those with sequences, or all others."""
    found = []
    for path in sorted(path for folder in folders for path in folder.glob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        is_sequence = path.stem.endswith("_sequences") or "stateful" in text
        if IMPORT.search(text) and is_sequence == (name == SEQUENCES):
            found.append(path)
    return found


def run_hypothesis(name: str, run: Run, folders: Sequence[Path] = UNIT_TESTS) -> Outcome:
    """Runs the test files one at a time, each with a new seed, until the time is over."""
    end = time.monotonic() + run.seconds
    log = run.log(name)
    order = random.Random(run.next_seed())
    files: list[Path] = []
    while True:
        if not files:
            files = list(files_of_hypothesis(folders, name))
            order.shuffle(files)
        seed = run.next_seed()
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "hypothesis",
        ]
        command += [f"--hypothesis-seed={seed}", "--hypothesis-profile=fuzz", str(files.pop())]
        with log.open("wb") as output:
            status = subprocess.run(command, stdout=output, stderr=output, check=False).returncode
        # A file may import Hypothesis and have no test of the marker: that is no finding.
        if status not in (0, NO_TESTS_COLLECTED):
            return Outcome(name, seed, shlex.join(command), log)
        if time.monotonic() >= end:
            return Outcome(name, seed, "", log)


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
    known = [*found, SEQUENCES, PROPERTIES]
    names = options.names or known
    if unknown := [name for name in names if name not in known]:
        parser.error(f"unknown target {unknown[0]!r}; one of: {', '.join(known)}")
    options.work.mkdir(parents=True, exist_ok=True)
    run = Run(options.work, options.seconds, lambda: random.SystemRandom().randrange(1, 2**31))

    def one(name: str) -> bool:
        if name == CONNECTIONS:
            outcome = run_connections(found[name], run)
        elif name in found:
            outcome = run_executable(name, found[name], run)
        else:
            outcome = run_hypothesis(name, run)
        report(outcome)
        return not outcome.replay

    with ThreadPoolExecutor(options.jobs) as pool:
        passed = list(pool.map(one, names))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
