"""Builds and runs the Dockerfile without docker: its steps, in fresh Debian folders, as root.

Usage: python -m tests.images.try_dockerfile [--work build/docker] [--model DIRECTORY]
           [--build-context NAME=DIRECTORY] [--keep]

Each stage that the last one needs is a folder made by debootstrap. COPY copies into it; RUN runs in
it, in a separate mount and process namespace. The last stage is then started as `docker run
--read-only --tmpfs /tmp --cap-drop ALL` would start it (ENTRYPOINT, ENV, USER, VOLUME): its
HEALTHCHECK must pass, `millpond status` and `predict` must work beside the server, and SIGTERM must
end it with exit status 0. An unknown instruction is an error, so the whole Dockerfile is covered.
Docker's layers, limits and network are not tested. --build-context is docker's: a directory in place
of a stage.
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
from collections.abc import Collection, Mapping, Sequence
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
    user: str = "0:0"
    volumes: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)


@dataclass
class StageText:
    """A stage of a Dockerfile as it is written: its image and name, and its further instructions."""

    image: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def origins(self) -> set[str]:
        """Returns the names of the stages from which this one copies, and its image's."""
        copies = [arguments.split()[0] for word, arguments in self.steps if word == "COPY"]
        flag = "--from="
        return {self.image, *(word.removeprefix(flag) for word in copies if word.startswith(flag))}


def instructions(text: str) -> list[tuple[str, str]]:
    """Returns the (instruction, arguments) pairs of a Dockerfile, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    pairs = (line.strip().partition(" ") for line in joined.splitlines() if line.strip())
    return [(word.upper(), rest.strip()) for word, _, rest in pairs]


def stages(pairs: Sequence[tuple[str, str]]) -> tuple[dict[str, str], list[StageText]]:
    """Returns the variables before the first FROM, and the stages in their order. Pure."""
    variables: dict[str, str] = {}
    found: list[StageText] = []
    for instruction, arguments in pairs:
        if instruction == "FROM":
            image, _, name = substituted(arguments, variables).partition(" AS ")
            found.append(StageText(image, name or f"stage-{len(found)}"))
        elif found:
            found[-1].steps.append((instruction, arguments))
        elif instruction == "ARG":
            name, _, value = arguments.partition("=")
            variables[name] = value
        else:
            raise SystemExit(f"try_dockerfile.py: {instruction} stands before FROM")
    return variables, found


def needed_stages(written: Sequence[StageText], contexts: Collection[str] = ()) -> list[StageText]:
    """Returns the stages that the last one needs, itself included. Pure.

    As in docker, a stage whose name is one of `contexts` is replaced, so it needs nothing.
    """
    needed: set[str] = {written[-1].name}
    for stage in reversed(written):
        if stage.name in needed and stage.name not in contexts:
            needed |= stage.origins()
    return [stage for stage in written if stage.name in needed and stage.name not in contexts]


def substituted(text: str, variables: Mapping[str, str]) -> str:
    """Returns `text` with each ${NAME} replaced."""
    return re.sub(r"\$\{(\w+)\}", lambda match: variables[match[1]], text)


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

    def __init__(self, work: Path, contexts: Mapping[str, Path]) -> None:
        self._work = work
        self._ignored = ignored_patterns()
        self._contexts = contexts
        self.stages: dict[str, Stage] = {}
        self._stage: Stage | None = None
        self._variables: dict[str, str] = {}

    def run(self, dockerfile: Path) -> Stage:
        _, written = stages(instructions(dockerfile.read_text()))
        for stage in needed_stages(written, self._contexts):
            print(f"--- FROM {stage.image} AS {stage.name}", flush=True)
            self._from(stage)
            for instruction, arguments in stage.steps:
                step = getattr(self, f"_{instruction.lower()}", None)
                if step is None:
                    raise SystemExit(f"try_dockerfile.py: {instruction} is not supported: add it")
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

    def _from(self, written: StageText) -> None:
        root = self._work / written.name
        if written.image == "scratch":
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir(parents=True)
        elif written.image in DEBIAN_IMAGES:
            debian = self._work / "debian"
            fresh_debian.bootstrap(debian)
            fresh_debian.copy(debian, root)
        else:
            raise SystemExit(f"try_dockerfile.py: {written.image} is not supported: add it")
        self._stage = self.stages[written.name] = Stage(root)
        self._variables = {}

    def _workdir(self, arguments: str) -> None:
        stage = self._current()
        stage.folder = arguments
        inside(stage.root, arguments).mkdir(parents=True, exist_ok=True)

    def _copy(self, arguments: str) -> None:
        words = arguments.split()
        stage = self._current()
        origin, patterns = PROJECT, self._ignored
        if words[0].startswith("--from="):
            name = words.pop(0).removeprefix("--from=")
            origin, patterns = self._origin(name), []
        *sources, last = words
        destination = inside(stage.root, str(Path(stage.folder) / last))
        for pattern in sources:
            found = sorted(origin.glob(pattern.lstrip("/")))
            if not found:
                raise SystemExit(f"try_dockerfile.py: COPY finds no {pattern} in {origin}")
            for source in found:
                self._copy_one(source, destination, origin, patterns, last)

    def _origin(self, name: str) -> Path:
        return self._contexts[name] if name in self._contexts else self.stages[name].root

    @staticmethod
    def _copy_one(
        source: Path, destination: Path, origin: Path, patterns: list[str], last: str
    ) -> None:
        def ignore(folder: str, names: list[str]) -> list[str]:
            relative = Path(folder).relative_to(origin)
            return [name for name in names if is_ignored(str(relative / name), patterns)]

        if is_ignored(str(source.relative_to(origin)), patterns):
            raise SystemExit(f"try_dockerfile.py: .dockerignore hides {source} from COPY")
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
        # The variables of ARG are the shell's, as in docker.
        environment |= self._variables
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
        stage = self._current()
        for path in arguments.split():
            inside(stage.root, path).mkdir(parents=True, exist_ok=True)
            stage.volumes.append(path)

    def _expose(self, arguments: str) -> None:
        """Does nothing: the process shares this machine's network."""

    def _healthcheck(self, arguments: str) -> None:
        self._current().healthcheck = json.loads(arguments.partition("CMD ")[2])

    def _entrypoint(self, arguments: str) -> None:
        self._current().entrypoint = json.loads(arguments)


class Container:
    """A stage that runs, with a read-only root file system and without capabilities."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        command = fresh_debian.locked_command_in(
            stage.root, stage.folder, stage.entrypoint, stage.user, writable=stage.volumes
        )
        self._process = subprocess.Popen(command, env=stage.environment)

    def execute(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Runs a command beside the server, as `docker exec` does."""
        return subprocess.run(
            fresh_debian.command_beside(process_one(self._process), self._stage.user, words),
            env=self._stage.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def wait_until_healthy(self) -> None:
        deadline = time.monotonic() + HEALTHY_WITHIN_SECONDS
        while True:
            if self._process.poll() is not None:
                raise SystemExit(f"try_dockerfile.py: the server ended: {self._process.returncode}")
            # At first `unshare` has not started the server yet.
            reason = "not started"
            if children_of(self._process):
                check = self.execute(self._stage.healthcheck)
                if check.returncode == 0:
                    return
                reason = check.stderr.strip()
            if time.monotonic() > deadline:
                raise SystemExit(f"try_dockerfile.py: never healthy: {reason}")
            time.sleep(0.5)

    def stop(self) -> int:
        """Stops the server as docker does, and returns its exit status."""
        os.kill(process_one(self._process), signal.SIGTERM)
        return self._process.wait(STOPPED_WITHIN_SECONDS)

    def kill(self) -> None:
        self._process.kill()


def children_of(process: subprocess.Popen[bytes]) -> list[int]:
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(word) for word in text.split()]


def process_one(process: subprocess.Popen[bytes]) -> int:
    """Returns the container's process 1, which is the only child of `unshare`."""
    (child,) = children_of(process)
    return child


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def try_image(stage: Stage, model: Path | None) -> None:
    """Starts the image, waits until it is healthy, uses it, and stops it as docker does."""
    # As with `docker run -e`: the network is this machine's, and its ports may be in use.
    stage.environment["MILLPOND_PORT"] = str(free_port())
    stage.environment["MILLPOND_HTTP_PORT"] = str(free_port())
    if model is not None:
        name = stage.environment["MODEL_NAME"]
        shutil.copytree(model, inside(stage.root, "/models") / name, dirs_exist_ok=True)
    started = time.monotonic()
    container = Container(stage)
    try:
        container.wait_until_healthy()
        print(f"healthy after {time.monotonic() - started:.1f} s", flush=True)
        use(container, stage, has_model=model is not None)
        status = container.stop()
    finally:
        container.kill()
    if status != 0:
        raise SystemExit(f"try_dockerfile.py: exit status {status} after SIGTERM, expected 0")
    print("stopped by SIGTERM with exit status 0", flush=True)


def use(container: Container, stage: Stage, *, has_model: bool) -> None:
    """Runs commands beside the server. Exits if one fails, or if the root can be written to."""
    if container.execute(["touch", "/written"]).returncode == 0:
        raise SystemExit("try_dockerfile.py: the root file system is not read-only")
    commands = [["millpond", "--version"], ["millpond", "status"]]
    if has_model:
        port = stage.environment["MILLPOND_PORT"]
        model = stage.environment["MODEL_NAME"]
        commands.append(["millpond", "predict", model, f"--target=localhost:{port}"])
    for words in commands:
        done = container.execute(words)
        print(f"$ {' '.join(words)}\n{done.stdout}", flush=True)
        if done.returncode != 0:
            raise SystemExit(f"try_dockerfile.py: {' '.join(words)}: {done.stderr}")


def directory_size_mb(path: Path) -> int:
    size = subprocess.run(["du", "-sm", path], capture_output=True, text=True, check=True)
    return int(size.stdout.split()[0])


def named_directory(text: str) -> tuple[str, Path]:
    """Returns the name and the directory of NAME=DIRECTORY."""
    name, _, directory = text.partition("=")
    if not Path(directory).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=DIRECTORY")
    return name, Path(directory).resolve()


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds and runs the Dockerfile without docker.")
    parser.add_argument("--work", type=Path, default=Path("build/docker"))
    parser.add_argument("--model", type=Path, help="a folder of versions to serve")
    parser.add_argument(
        "--build-context",
        type=named_directory,
        action="append",
        default=[],
        metavar="NAME=DIRECTORY",
        help="a directory in place of a stage",
    )
    parser.add_argument("--keep", action="store_true", help="keep the stages' folders")
    arguments = parser.parse_args()
    fresh_debian.require_root()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    build = Build(work, dict(arguments.build_context))
    stage = build.run(PROJECT / "Dockerfile")
    base, whole = directory_size_mb(work / "debian"), directory_size_mb(stage.root)
    print(f"image: {whole} MB, of which {base} MB are the fresh Debian", flush=True)
    try_image(stage, arguments.model)
    if not arguments.keep:
        for folder in build.stages.values():
            shutil.rmtree(folder.root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
