"""Runs make targets on a fresh Debian 12 with nothing but git, python3 and make, as root.

Usage: python -m tests.images.try_clean_machine [--work build/clean] [--again] [TARGET...]
(default targets: test demo lint test demo)

Uses a copy of all files that a commit of everything would have, in a new folder. Prints the time of
each target, and stops at the first target that fails.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.images import fresh_debian

PROJECT = Path(__file__).resolve().parents[2]
FOLDER = "/millpond"
PACKAGES = ("ca-certificates", "git", "make", "python3")
TARGETS = ["test", "demo", "lint", "test", "demo"]


def copy_tree(destination: Path) -> None:
    """Copies the files that git tracks or would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=PROJECT, capture_output=True, check=True).stdout
    for name in names.decode().split("\0"):
        # git still lists a file that was deleted but is in its index.
        if name and (PROJECT / name).is_file():
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, destination / name)


def run_target(root: Path, target: str) -> int:
    environment = {"PATH": fresh_debian.PATH, "HOME": "/root", "LANG": "C.UTF-8", "CI": "true"}
    environment |= fresh_debian.settings()
    started = time.monotonic()
    status = fresh_debian.run_in(root, FOLDER, ["make", target], environment)
    print(
        f"=== make {target}: exit status {status}, {time.monotonic() - started:.0f} s", flush=True
    )
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs make targets on a fresh Debian 12.")
    parser.add_argument("--work", type=Path, default=PROJECT / "build" / "clean")
    parser.add_argument("targets", nargs="*", default=TARGETS)
    parser.add_argument("--again", action="store_true", help="continue in the last run's machine")
    arguments = parser.parse_args()
    fresh_debian.require_root()
    work = arguments.work.resolve()
    root = work / "root"
    if not arguments.again:
        fresh_debian.bootstrap(work / "debian", PACKAGES)
        fresh_debian.copy(work / "debian", root)
    copy_tree(fresh_debian.inside(root, FOLDER))
    for target in arguments.targets:
        status = run_target(root, target)
        if status != 0:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
