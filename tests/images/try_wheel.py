"""Installs a wheel of dist/ by pip alone on fresh Debians, and serves and swaps a model with it.

Usage: python -m tests.images.try_wheel [--work build/wheel-test] [--keep] [SUITE...]
(default suites: those whose Python has a wheel in dist/)

Each suite is a Debian made by debootstrap with nothing but Python and its venv: no compiler, and no
package that Millpond would need. A user without root makes a virtual environment, installs the wheel
and its dependencies from PyPI, exports a model, serves it, asks it, and swaps a second version in
(tests/images/use_wheel.py). Then tensorflow-cpu takes TensorFlow's place, and all of that is done
again. pip's cache is kept in the work folder, so that a second run downloads less. Prints the seconds
of each step, and the size of the environment with either package.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.images import fresh_debian
from tests.images.fresh_debian import inside

PROJECT = Path(__file__).resolve().parents[2]
# The Python of each suite.
PYTHONS = {"bookworm": "cp311", "trixie": "cp313"}
USER = "newcomer"
HOME = f"/home/{USER}"
CACHE = f"{HOME}/.cache/pip"
STEP_TIMEOUT_SECONDS = 1200
# Files that a wheel must have, below its .dist-info directory.
METADATA_FILES = (
    "sboms/millpond.cdx.json",
    "licenses/LICENSE",
    *(f"licenses/licenses/{path.name}" for path in sorted((PROJECT / "licenses").glob("*.txt"))),
)


def wheel_for(suite: str) -> Path | None:
    """Returns the wheel in dist/ for the Python of `suite`; None if there is none."""
    found = sorted((PROJECT / "dist").glob(f"millpond-*-{PYTHONS[suite]}-*manylinux*.whl"))
    return found[-1] if found else None


class Machine:
    """A fresh Debian with a user, and a count of the seconds of each step."""

    def __init__(self, root: Path, cache: Path) -> None:
        self._root, self._cache = root, cache

    def make(self, debian: Path) -> None:
        """Copies `debian` and adds the user and pip's cache."""
        fresh_debian.copy(debian, self._root)
        self._run(["useradd", "--create-home", "--shell", "/bin/sh", USER], user="root")
        cache = inside(self._root, CACHE)
        cache.parent.mkdir(parents=True, exist_ok=True)
        if self._cache.is_dir():
            subprocess.run(["cp", "-a", str(self._cache), str(cache)], check=True)
        self._run(["chown", "-R", f"{USER}:{USER}", f"{HOME}/.cache"], user="root")

    def keep_cache(self) -> None:
        """Takes pip's cache out for the next machine, if pip has kept one."""
        cache = inside(self._root, CACHE)
        # A mirror may forbid to keep what it serves.
        if cache.is_dir():
            shutil.rmtree(self._cache, ignore_errors=True)
            subprocess.run(["cp", "-a", str(cache), str(self._cache)], check=True)

    def put(self, path: Path) -> str:
        """Copies a file into the user's home and returns its path there."""
        shutil.copy(path, inside(self._root, HOME))
        return f"{HOME}/{path.name}"

    def step(self, title: str, words: list[str]) -> float:
        """Runs `words` as the user, prints and returns the seconds. Exits if they fail."""
        started = time.monotonic()
        self._run(words, user=USER)
        seconds = time.monotonic() - started
        print(f"--- {title}: {seconds:.1f} s", flush=True)
        return seconds

    def _run(self, words: list[str], *, user: str) -> None:
        environment = {
            "PATH": fresh_debian.PATH,
            "HOME": HOME,
            "LANG": "C.UTF-8",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            **fresh_debian.settings(),
        }
        status = subprocess.run(
            fresh_debian.command_in(self._root, "/", words, user),
            env=environment,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=STEP_TIMEOUT_SECONDS,
        ).returncode
        if status != 0:
            raise SystemExit(f"try_wheel.py: {' '.join(words)}: exit status {status}")

    def size_mb(self, folder: str) -> int:
        words = ["du", "-sm", str(inside(self._root, folder))]
        return int(
            subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[0]
        )

    def check_bare(self) -> None:
        """Exits if the machine has a compiler or one of the libraries that the wheel carries."""
        for name in ("gcc", "cc", "g++", "make"):
            if inside(self._root, f"/usr/bin/{name}").exists():
                raise SystemExit(f"try_wheel.py: the machine has {name}")
        libraries = inside(self._root, "/usr/lib/x86_64-linux-gnu")
        for name in ("libjemalloc", "libnghttp2"):
            if list(libraries.glob(f"{name}*")):
                raise SystemExit(f"try_wheel.py: the machine has {name}")

    def check_metadata(self) -> None:
        """Exits if a licence or the bill of materials is missing."""
        (metadata,) = inside(self._root, HOME).glob("venv/lib/*/site-packages/millpond-*.dist-info")
        missing = [name for name in METADATA_FILES if not (metadata / name).is_file()]
        if missing:
            raise SystemExit(f"try_wheel.py: the installed wheel lacks {missing}")


def try_suite(suite: str, wheel: Path, work: Path) -> None:
    """Installs `wheel` on a fresh `suite`, and uses it. Exits at the first failure."""
    debian = work / f"{suite}-debian"
    fresh_debian.bootstrap(debian, ["python3", "python3-venv"], suite=suite)
    machine = Machine(work / suite, work / f"pip-cache-{suite}")
    machine.make(debian)
    machine.check_bare()
    wheel_inside, script = machine.put(wheel), machine.put(PROJECT / "tests/images/use_wheel.py")
    print(f"=== {suite}: {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
    python = f"{HOME}/venv/bin/python"
    seconds = machine.step("python3 -m venv", ["python3", "-m", "venv", f"{HOME}/venv"])
    seconds += machine.step("pip install", [python, "-m", "pip", "install", "-q", wheel_inside])
    machine.keep_cache()
    machine.check_metadata()
    machine.step("millpond help", [f"{HOME}/venv/bin/millpond", "help", "getting-started"])
    seconds += use(machine, python, script, f"{HOME}/models")
    print(f"=== {suite}: {seconds:.1f} s from an empty machine to the first answer", flush=True)
    # As docs/install.md says it.
    pip = [python, "-m", "pip"]
    machine.step("pip uninstall tensorflow", [*pip, "uninstall", "-q", "-y", "tensorflow"])
    machine.step("pip install tensorflow-cpu", [*pip, "install", "-q", "tensorflow-cpu==2.21.*"])
    use(machine, python, script, f"{HOME}/models-cpu")


def use(machine: Machine, python: str, script: str, models: str) -> float:
    """Uses the installed wheel, and returns the seconds to the first answer."""
    print(f"the environment has {machine.size_mb(f'{HOME}/venv')} MB", flush=True)
    machine.step("millpond --version", [f"{HOME}/venv/bin/millpond", "--version"])
    machine.step("export two versions", [python, script, "export", models])
    seconds = machine.step("serve to the first answer", [python, script, "start", models])
    machine.step("serve, ask, swap, refuse another TensorFlow", [python, script, "use", models])
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description="Tries the wheels of dist/ on fresh Debians.")
    parser.add_argument("--work", type=Path, default=PROJECT / "build" / "wheel-test")
    parser.add_argument("--keep", action="store_true", help="keep the machines")
    parser.add_argument("suites", nargs="*", choices=[*PYTHONS, []])
    arguments = parser.parse_args()
    fresh_debian.require_root()
    work = arguments.work.resolve()
    wheels = {suite: wheel_for(suite) for suite in arguments.suites or PYTHONS}
    if not any(wheels.values()):
        raise SystemExit("try_wheel.py: dist/ has no wheel: run `make wheel`")
    for suite, wheel in wheels.items():
        if wheel is None:
            print(f"=== {suite}: skipped, dist/ has no wheel for {PYTHONS[suite]}", flush=True)
            continue
        try_suite(suite, wheel, work)
        if not arguments.keep:
            shutil.rmtree(work / suite)
    return 0


if __name__ == "__main__":
    sys.exit(main())
