"""Builds and runs the Dockerfile without docker: its steps, in fresh Debian folders, as root.

Usage: python -m tests.images.try_dockerfile [--work build/docker] [--model DIRECTORY] [--keep]

Each stage is a folder made by debootstrap. COPY copies into it; RUN runs in it, in a separate mount
and process namespace. The last stage is then started as docker would start it (ENTRYPOINT, ENV,
USER): its HEALTHCHECK must pass, and SIGTERM must end it with exit status 0. An unknown instruction
is an error, so the whole Dockerfile is covered. Docker's layers, limits and network are not tested.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.images import fresh_debian
from tests.images.fresh_debian import inside

PROJECT = Path(__file__).resolve().parents[2]
# The images that a fresh Debian replaces: it has the same packages, and the documentation too.
DEBIAN_IMAGES = frozenset({"debian:bookworm-slim"})
# The server loads a model and TensorFlow's libraries from a cold disk before it is healthy.
HEALTHY_WITHIN_SECONDS = 60
STOPPED_WITHIN_SECONDS = 30


@dataclass
class Stage:
    """The state of one FROM and the instructions after it."""

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": fresh_debian.PATH})
    folder: str = "/"
    user: str = "root"
    healthcheck: str = ""
    entrypoint: list[str] = field(default_factory=list)

    def command(self, words: list[str]) -> list[str]:
        """Returns the command that runs `words` as docker would in this stage."""
        return fresh_debian.command_in(self.root, self.folder, words, self.user)


def instructions(text: str) -> list[tuple[str, str]]:
    """Returns the (instruction, arguments) pairs of a Dockerfile, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    pairs = (line.strip().partition(" ") for line in joined.splitlines() if line.strip())
    return [(word.upper(), rest.strip()) for word, _, rest in pairs]


def ignored_patterns() -> list[str]:
    text = (PROJECT / ".dockerignore").read_text()
    patterns = [line for line in text.splitlines() if line and not line.startswith("#")]
    if any(pattern.startswith("!") for pattern in patterns):
        raise SystemExit("try_dockerfile.py: exceptions ('!') in .dockerignore are not supported")
    return patterns


def is_ignored(path: str, patterns: list[str]) -> bool:
    """Returns True if .dockerignore excludes `path`, relative to the project, from the context."""
    ends = [path, *(str(parent) for parent in Path(path).parents)]
    return any(
        fnmatch.fnmatch(end, pattern) or fnmatch.fnmatch("/" + end, pattern.replace("**/", "*/"))
        for pattern in patterns
        for end in ends
    )


class Build:
    """Carries out a Dockerfile, one stage folder for each FROM."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._ignored = ignored_patterns()
        self._variables: dict[str, str] = {}
        self.stages: dict[str, Stage] = {}
        self._stage: Stage | None = None

    def run(self, dockerfile: Path) -> Stage:
        for instruction, arguments in instructions(dockerfile.read_text()):
            step = getattr(self, f"_{instruction.lower()}", None)
            if step is None:
                raise SystemExit(f"try_dockerfile.py: {instruction} is not supported yet: add it")
            print(f"--- {instruction} {arguments}", flush=True)
            step(arguments)
        return self._current()

    def _current(self) -> Stage:
        if self._stage is None:
            raise SystemExit("try_dockerfile.py: the Dockerfile has no FROM")
        return self._stage

    def _arg(self, arguments: str) -> None:
        name, _, value = arguments.partition("=")
        self._variables[name] = value

    def _from(self, arguments: str) -> None:
        image, _, name = re.sub(
            r"\$\{(\w+)\}", lambda m: self._variables[m[1]], arguments
        ).partition(" AS ")
        if image not in DEBIAN_IMAGES:
            raise SystemExit(f"try_dockerfile.py: {image} is not supported yet: add it")
        name = name or f"stage-{len(self.stages)}"
        debian = self._work / "debian"
        fresh_debian.bootstrap(debian)
        fresh_debian.copy(debian, self._work / name)
        self._stage = self.stages[name] = Stage(self._work / name)

    def _workdir(self, arguments: str) -> None:
        stage = self._current()
        stage.folder = arguments
        inside(stage.root, arguments).mkdir(parents=True, exist_ok=True)

    def _copy(self, arguments: str) -> None:
        words = arguments.split()
        stage = self._current()
        origin, patterns = PROJECT, self._ignored
        if words[0].startswith("--from="):
            origin, patterns = self.stages[words.pop(0).removeprefix("--from=")].root, []
        *sources, last = words
        destination = inside(stage.root, str(Path(stage.folder) / last))
        for source in sources:
            self._copy_one(inside(origin, source), destination, origin, patterns, last)

    @staticmethod
    def _copy_one(
        source: Path, destination: Path, origin: Path, patterns: list[str], last: str
    ) -> None:
        def ignore(folder: str, names: list[str]) -> list[str]:
            relative = Path(folder).relative_to(origin)
            return [name for name in names if is_ignored(str(relative / name), patterns)]

        if is_ignored(str(source.relative_to(origin)), patterns) or not source.exists():
            raise SystemExit(f"try_dockerfile.py: COPY finds no {source} in the build's context")
        if source.is_dir():
            shutil.copytree(source, destination, symlinks=True, ignore=ignore, dirs_exist_ok=True)
            return
        if last.endswith("/"):
            destination = destination / source.name
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, destination)

    def _run(self, arguments: str) -> None:
        stage = self._current()
        environment = {"HOME": "/root"} | fresh_debian.settings() | stage.environment
        words = ["/bin/sh", "-c", arguments]
        status = fresh_debian.run_in(stage.root, stage.folder, words, environment)
        if status != 0:
            raise SystemExit(f"try_dockerfile.py: RUN {arguments}: exit status {status}")

    def _env(self, arguments: str) -> None:
        name, _, value = arguments.partition("=")
        self._current().environment[name] = value

    def _user(self, arguments: str) -> None:
        self._current().user = arguments

    def _volume(self, arguments: str) -> None:
        inside(self._current().root, arguments).mkdir(parents=True, exist_ok=True)

    def _expose(self, arguments: str) -> None:
        """Does nothing: the process shares this machine's network."""

    def _healthcheck(self, arguments: str) -> None:
        self._current().healthcheck = arguments.partition("CMD ")[2]

    def _entrypoint(self, arguments: str) -> None:
        self._current().entrypoint = json.loads(arguments)


def wait_until_healthy(stage: Stage, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + HEALTHY_WITHIN_SECONDS
    command = stage.command(["/bin/sh", "-c", stage.healthcheck])
    while True:
        if server.poll() is not None:
            raise SystemExit(f"try_dockerfile.py: the server ended with {server.returncode}")
        check = subprocess.run(
            command, env=stage.environment, capture_output=True, text=True, check=False
        )
        if check.returncode == 0:
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"try_dockerfile.py: never healthy: {check.stderr.strip()}")
        time.sleep(0.5)


def process_one(server: subprocess.Popen[bytes]) -> int:
    """Returns the container's process 1, which is the only child of `unshare`."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    (child,) = children
    return int(child)


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def try_image(stage: Stage, model: Path | None) -> None:
    """Starts the image, waits until it is healthy, and stops it as docker does."""
    # As with `docker run -e`: the network is this machine's, and its port 8500 may be in use.
    stage.environment["MILLPOND_PORT"] = str(free_port())
    if model is not None:
        name = stage.environment["MODEL_NAME"]
        shutil.copytree(model, inside(stage.root, "/models") / name, dirs_exist_ok=True)
    started = time.monotonic()
    server = subprocess.Popen(stage.command(stage.entrypoint), env=stage.environment)
    try:
        wait_until_healthy(stage, server)
        print(f"healthy after {time.monotonic() - started:.1f} s", flush=True)
        os.kill(process_one(server), signal.SIGTERM)
        status = server.wait(STOPPED_WITHIN_SECONDS)
    finally:
        server.kill()
    if status != 0:
        raise SystemExit(f"try_dockerfile.py: exit status {status} after SIGTERM, expected 0")
    print("stopped by SIGTERM with exit status 0", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds and runs the Dockerfile without docker.")
    parser.add_argument("--work", type=Path, default=Path("build/docker"))
    parser.add_argument("--model", type=Path, help="a folder of versions to serve")
    parser.add_argument("--keep", action="store_true", help="keep the stages' folders")
    arguments = parser.parse_args()
    fresh_debian.require_root()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    build = Build(work)
    stage = build.run(PROJECT / "Dockerfile")
    size = subprocess.run(["du", "-sm", stage.root], capture_output=True, text=True, check=True)
    print(f"image: {size.stdout.split()[0]} MB", flush=True)
    try_image(stage, arguments.model)
    if not arguments.keep:
        for folder in build.stages.values():
            shutil.rmtree(folder.root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
