"""Runs clang-tidy on C++ files that changed since clang-tidy last passed on them.

Usage: run_clang_tidy.py --build FOLDER [--jobs N] FILE...

FOLDER holds compile_commands.json, and a stamp for each file that passed: a digest of the file, of
the headers of this repository that it includes, of .clang-tidy and of the compile command's flags.
Digests, not times, so that a change of branch checks only what differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

CLANG_TIDY = "clang-tidy-14"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


@cache
def included(source: Path) -> frozenset[Path]:
    """The files that `source` includes itself, by paths from the current folder."""
    names = INCLUDE.findall(source.read_text(encoding="utf-8"))
    return frozenset(path for path in map(Path, names) if path.is_file())


def all_included(source: Path) -> frozenset[Path]:
    """`source` and all files that it includes, directly or not."""
    found = {source}
    pending = [source]
    while pending:
        for path in included(pending.pop()) - found:
            found.add(path)
            pending.append(path)
    return frozenset(found)


def digest(source: Path, command: str) -> str:
    """The digest of everything that clang-tidy's result for `source` depends on."""
    hashed = hashlib.sha256(command.encode())
    for path in (Path(".clang-tidy"), *sorted(all_included(source))):
        hashed.update(f"\0{path}\0".encode() + path.read_bytes())
    return hashed.hexdigest()


def commands(build: Path) -> Mapping[str, str]:
    """The compile command of each file."""
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    return {str(Path(entry["file"]).resolve()): entry["command"] for entry in entries}


def stamp_path(build: Path, source: Path) -> Path:
    return build / "clang_tidy_passed" / str(source).replace("/", "-")


def check(build: Path, source: Path, wanted: str) -> bool:
    """Runs clang-tidy on `source`, prints its complaints, and leaves the stamp if it has none."""
    done = subprocess.run(
        [CLANG_TIDY, "--quiet", "-p", str(build), str(source)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print(done.stdout, end="", flush=True)
        return False
    stamp = stamp_path(build, source)
    stamp.parent.mkdir(exist_ok=True)
    stamp.write_text(wanted, encoding="utf-8")
    return True


def changed(build: Path, sources: Sequence[Path]) -> Mapping[Path, str]:
    """The files whose stamp is missing or differs, with the digest of each."""
    command_of = commands(build)
    wanted = {source: digest(source, command_of[str(source.resolve())]) for source in sources}
    return {
        source: text
        for source, text in wanted.items()
        if not (stamp := stamp_path(build, source)).is_file()
        or stamp.read_text(encoding="utf-8") != text
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("sources", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    pending = changed(options.build, options.sources)
    print(f"clang-tidy: {len(pending)} of {len(options.sources)} files changed", flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        passed = list(pool.map(lambda item: check(options.build, *item), pending.items()))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
