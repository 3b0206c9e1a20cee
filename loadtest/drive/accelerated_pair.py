"""Servers on the same cores, one with an accelerator and one without, for measurements side by side."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from loadtest.drive.demo_server import config_file
from serving.base.errors import Unavailable
from serving.server.model_server import ModelServer
from serving.server.server_log import LogEvent

CPU, ACCELERATOR = "cpu", "accelerator"
"""The names of the two servers, in the order in which figures show them."""

# Loading the libraries of CUDA and making a client takes seconds.
_START_SECONDS = 120
# With an empty cache, a version of six programs takes up to half a minute.
_LOAD_SECONDS = 240
# Enough requests wait in every model's queue to fill the largest program, and no model holds all request threads.
IN_FLIGHT_MAX = 512
_NOT_AUTOTUNED = "not-autotuned"


@dataclass(frozen=True)
class ServedModel:
    """A model of a server: the directory of its versions, and its settings in TOML."""

    base_path: Path
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The place of the servers, and the way to the accelerator.

    `library_path` is LD_LIBRARY_PATH of the server with the accelerator; "": as it is. `cores` are the servers',
    and the clients have the others; (): all have all. `memory_bytes` is the most of the accelerator's memory; 0: as
    much as it has. If it does not `autotune`, its programs are kept apart from those that are autotuned. Each model
    refuses requests beyond `in_flight_max`. `more_flags` are for both servers, but those of accelerators for one only.
    `environment` is for the server with the accelerator.
    """

    accelerator: str
    rows: str
    cache_directory: Path
    library_path: str = ""
    cores: Sequence[int] = ()
    memory_bytes: int = 0
    autotunes: bool = True
    in_flight_max: int = IN_FLIGHT_MAX
    more_flags: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def server_flags(self, name: str) -> dict[str, object]:
        """The arguments of ModelServer for the server of that name."""
        flags: dict[str, object] = {"enable_batching": True, "file_system_poll_wait_seconds": 0.1}
        flags["command"] = self._command()
        if name == CPU:
            # A start without an accelerator refuses its flags.
            more = self.more_flags.items()
            return flags | {flag: v for flag, v in more if not flag.startswith("accelerator")}
        flags |= {
            "accelerator": self.accelerator,
            "accelerator_rows": self.rows,
            "accelerator_cache_directory": self.cache_directory,
            "accelerator_memory_bytes": self.memory_bytes,
            "start_timeout_seconds": _START_SECONDS,
            **self.more_flags,
        }
        if not self.autotunes:
            flags["accelerator_autotuning"] = "never"
            flags["accelerator_cache_directory"] = self.cache_directory / _NOT_AUTOTUNED
        library_path = {"LD_LIBRARY_PATH": self.library_path} if self.library_path else {}
        return flags | {"environment": {**self.environment, **library_path}}

    def _command(self) -> Sequence[str]:
        pinned = ["taskset", "-c", ",".join(map(str, self.cores))] if self.cores else []
        return [*pinned, sys.executable, "-m", "serving"]


def halves_of_cores(cores: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """The servers' cores and the clients'; all for both if there are fewer than four."""
    if len(cores) < 4:
        return (), cores
    middle = len(cores) // 2
    return cores[:middle], cores[middle:]


def keep_to_client_cores(cores: Sequence[int]) -> None:
    """Lets this process, and so the generators that it starts, use only these cores."""
    os.sched_setaffinity(0, cores)


class KeptServers:
    """Servers that run on from one part to the next, as long as the next one wants the same models of them."""

    def __init__(self) -> None:
        self._models: Mapping[str, ServedModel] = {}
        self._servers: Mapping[str, ModelServer] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "KeptServers":
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def both(
        self, machine: Machine, models: Mapping[str, ServedModel]
    ) -> Mapping[str, ModelServer]:
        """Returns the two servers with these models. Starts them if others run, or none.

        Raises the errors of `serving_models`.
        """
        if self._models != models:
            self.stop()
            with ExitStack() as stack:
                self._servers = {
                    name: stack.enter_context(serving_models(machine, name, models))
                    for name in (CPU, ACCELERATOR)
                }
                self._stack = stack.pop_all()
            self._models = models
        return self._servers

    def stop(self) -> None:
        """Stops the servers, if some run. Raises Unavailable if one has died."""
        self._models, self._servers = {}, {}
        self._stack.close()

    def kill(self) -> None:
        """Ends the servers at once, for example after a failure that they may have a part in."""
        for server in self._servers.values():
            server.kill()
        self.stop()


@contextmanager
def serving_models(
    machine: Machine, name: str, models: Mapping[str, ServedModel]
) -> Iterator[ModelServer]:
    """Yields the server of that name, once all of its models' first versions serve.

    Raises Unavailable if a model does not load, or does not run on the accelerator.
    """
    with TemporaryDirectory(prefix="millpond-gpu-") as work, ExitStack() as stack:
        places = {each: model.base_path for each, model in models.items()}
        flags = model_flags(machine, name, models, Path(work))
        flags |= {"model_config_file": config_file(Path(work), places)}
        server = stack.enter_context(ModelServer(**flags))  # type: ignore[arg-type]
        for each in models:
            _wait_for_load(server, each)
        if name == ACCELERATOR:
            check_on_accelerator(server, list(models))
        yield server


def model_flags(
    machine: Machine, name: str, models: Mapping[str, ServedModel], work: Path
) -> dict[str, object]:
    """The flags of the server of that name for these models, all of which run on its side.

    Writes their settings into `work`.
    """
    return machine.server_flags(name) | {
        "model_settings_file": _settings_file(work, name, machine.in_flight_max, models),
        "max_in_flight_requests": machine.in_flight_max * len(models),
    }


def _wait_for_load(server: ModelServer, name: str) -> None:
    """Waits until the model's first version serves. Raises Unavailable at once if it does not load."""

    def is_end(event: LogEvent) -> bool:
        has_failed = event["event"] == "load_failed" and not event["will_retry"]
        return event.get("model") == name and (has_failed or event["event"] == "version_available")

    event = server.wait_for_event(is_end, _LOAD_SECONDS)
    if event["event"] == "load_failed":
        raise Unavailable(f"{name} does not load: {event['reason']}")


def check_on_accelerator(server: ModelServer, names: Sequence[str]) -> None:
    """Raises Unavailable if a model has no signature on the accelerator."""
    for name in names:
        events = [event for event in server.events() if event.get("model") == name]
        if not any(event["event"] == "signature_on_accelerator" for event in events):
            reasons = [event["reason"] for event in events if event["event"] == "signature_on_cpu"]
            raise Unavailable(f"{name} does not run on the accelerator: {'; '.join(reasons)}")


def _settings_file(
    directory: Path, server_name: str, in_flight_max: int, models: Mapping[str, ServedModel]
) -> Path:
    # A server without an accelerator refuses a model that needs one.
    platform = "pjrt" if server_name == ACCELERATOR else "tensorflow"
    given = {"max_in_flight_requests": in_flight_max, "platform": platform}
    lines = []
    for name, model in models.items():
        lines.append(f"[models.{name}]")
        settings = {**given, **model.settings}
        lines += [f"{key} = {_toml(value)}" for key, value in settings.items()]
    path = directory / "settings.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
