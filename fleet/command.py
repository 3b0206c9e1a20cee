"""`millpond fleet`: starts the coordinator of a fleet, and operates one that runs."""

import argparse
import http.client
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet.config.config import (
    DEFAULT_LISTEN,
    OPERATION_PATH,
    REPLICAS_PATH,
    STATUS_PATH,
    is_host_and_port,
)
from serving.base.errors import (
    FailedPrecondition,
    InvalidArgument,
    InvalidConfig,
    MillpondError,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from serving.base.name_text import listed, printable
from serving.commands.argument_types import model_name, version_number
from serving.manager.canary import FAILED_SHARE_MAX
from serving.server.admin_sockets import FLEET_SUFFIX, live_sockets, run_directories

if TYPE_CHECKING:
    from fleet.config.config import FleetConfig
    from fleet.ray.front import Front

_TIMEOUT_SECONDS = 10.0
# The beginning of a Ray node's name, which has 56 characters.
_NODE_LENGTH = 12
# Blocked versions, and the length of a reason, in the status of a model.
_BLOCKED_COUNT_MAX = 5
_REASON_LENGTH_MAX = 200
# The names of servers in one line.
_NAME_COUNT_MAX = 10

# `by` of a blocked version, for people.
_JUDGES: Mapping[str, str] = {"canary": "its judgement", "operator": "an operator"}

_OPERATIONS: Mapping[str, str] = {
    "promote": "let the version on its way go to all servers without a further judgement",
    "abort": "block the version on its way, and roll every server back",
    "rollback": "roll every server back to the version before, and block the newer one",
    "pause": "let no further server begin to swap",
    "resume": "let a paused rollout go on",
    "allow": "unblock a version in the fleet",
}


def run(arguments: Sequence[str]) -> int:
    """Runs one of the commands of a fleet. Raises MillpondError."""
    parsed = make_parser().parse_args(arguments)
    actions: Mapping[str, Callable[[argparse.Namespace], int]] = {
        "start": _start,
        "stop": _stop,
        "service-config": _print_service_config,
        "restart": _replicas,
        "replicas": _replicas,
        "status": _show,
        "versions": _show,
    }
    return actions.get(parsed.action, _operate)(parsed)


def _replicas(parsed: argparse.Namespace) -> int:
    """Prints the servers that the fleet has started, and lets them restart if that was asked for."""
    if parsed.action == "restart":
        reply = _ask(parsed.target, "POST", REPLICAS_PATH, {"model": parsed.model})
    else:
        reply = _ask(parsed.target, "GET", REPLICAS_PATH)
    print_replicas(reply)
    return 0


def _operate(parsed: argparse.Namespace) -> int:
    request = {
        "operation": parsed.action,
        "model": parsed.model,
        "version": getattr(parsed, "version", None),
        "reason": getattr(parsed, "reason", ""),
    }
    status = _ask(parsed.target, "POST", OPERATION_PATH, request)
    # The reason to wait is that of the last decision, before the operation.
    print_models({parsed.model: {**status["models"][parsed.model], "waits_for": ""}})
    return 0


def _show(parsed: argparse.Namespace) -> int:
    status = _ask(parsed.target, "GET", STATUS_PATH)
    if parsed.json:
        print(json.dumps(status, indent=2))
    elif parsed.action == "versions":
        print_versions(status["models"])
    else:
        print_models(status["models"])
        if not status["models"]:
            print("no server has reported a model yet")
        print_servers(status["servers"])
        for problem in status.get("problems", ()):
            print(f"millpond: {printable(problem)}", file=sys.stderr)
    return 0


def print_models(models: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints a few lines for each model: its stable version, its rollout, and what is blocked."""
    for name, model in models.items():
        lines = [f"{name}: {_stable_line(model)}"]
        if rollout := model["rollout"]:
            lines += [f"{name}: {line}" for line in _rollout_lines(rollout, model["stable"])]
        if model["is_paused"]:
            lines.append(f"{name}: paused")
        if model["waits_for"]:
            lines.append(f"{name}: waits: {model['waits_for']}")
        if servers := model["without_files"]:
            lines.append(
                f"{name}: servers without the files of version {model['stable']}, which serve another "
                f"one or none until they have them: {_names(servers)}"
            )
        if servers := model["ignored_by"]:
            lines.append(
                f"{name}: servers that ignore this coordinator, because they have taken grants of "
                f"another one, or of one whose state is lost: {_names(servers)}"
            )
        lines += [f"{name}: {line}" for line in _blocked_lines(name, model["blocked_versions"])]
        for line in lines:
            print(printable(line))


def _stable_line(model: Mapping[str, Any]) -> str:
    if model["stable"] is None:
        if not model["found_versions"]:
            return "no server has found a version; check the base path where the servers run"
        return "no version is stable yet"
    if model["previous"] is None:
        return f"stable version {model['stable']}, and none to roll back to"
    return f"stable version {model['stable']}, before it {model['previous']}"


def _rollout_lines(rollout: Mapping[str, Any], stable: int | None) -> Iterator[str]:
    """Yields the wave of a rollout, the progress of its judgement, and its failures."""
    yield (
        f"version {rollout['version']} is in wave {rollout['wave']} of {rollout['wave_count']}, "
        f"on {rollout['serving_count']} of {rollout['needed_count']} servers"
    )
    judgement = rollout["judgement"]
    passed = judgement["passed_seconds"]
    if passed is None:
        yield "the judgement begins when all these servers serve it"
    elif stable is None:
        yield "a first version is not compared with another one"
    elif rollout["compared"] is None:
        yield (
            f"it is stable after {judgement['seconds']:g} s{_limit(rollout)}; so far "
            f"{rollout['failed_count']} of {rollout['request_count']} requests failed in {passed:g} s"
        )
    else:
        new, old = rollout["compared"]["wave"], rollout["compared"]["control"]
        of_requests = (
            f"{judgement['request_count']} requests or " if judgement["request_count"] else ""
        )
        yield (
            f"it is judged after {of_requests}{judgement['seconds']:g} s; so far "
            f"{new['failed_count']} of {new['request_count']} requests failed in {passed:g} s"
        )
        if not new["request_count"]:
            yield "a wave without requests passes: send it some, or pause it until clients do"
        if new["request_count"] and old["request_count"]:
            yield f"its p99 is {new['p99_ms']:.1f} ms; {old['p99_ms']:.1f} ms with version {stable}"
    if rollout["doubt"]:
        yield f"it is compared once more: {rollout['doubt']}"
    for name, reason in rollout["warned"].items():
        yield f"a gate has warned on {name}: {reason}"
    for name, cause in rollout["causes"].items():
        yield f"it failed on {name}: {cause}"


def _limit(rollout: Mapping[str, Any]) -> str:
    """Returns the limit of failures in the last wave; "" if an operator has promoted the version."""
    if rollout["is_promoted"]:
        return ""
    return f", unless more than {FAILED_SHARE_MAX:.0%} of its requests fail"


def _blocked_lines(model: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the latest blocked versions with the beginnings of their reasons."""
    latest = sorted(rows, key=lambda row: row["version"])[-_BLOCKED_COUNT_MAX:]
    for row in latest:
        reason = row["reason"]
        if len(reason) > _REASON_LENGTH_MAX:
            reason = f"{reason[:_REASON_LENGTH_MAX]}…"
        yield f"version {row['version']} is blocked by {_JUDGES.get(row['by'], row['by'])}: {reason}"
    if len(rows) > len(latest):
        yield f"{len(rows) - len(latest)} older versions are blocked too: status --json"
    if rows:
        yield f"to unblock a version: millpond fleet allow {model} VERSION"


def _names(servers: Sequence[str]) -> str:
    """Returns the first names, and how many there are."""
    more = f" and {len(servers) - _NAME_COUNT_MAX} more" if len(servers) > _NAME_COUNT_MAX else ""
    return ", ".join(servers[:_NAME_COUNT_MAX]) + more


def print_versions(models: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints a row for each version of each model, over all servers, with tabs."""
    print("model\tversion\tservers\tdefault on\trequests\tfailed\tp99 ms\tp999 ms")
    for name, model in models.items():
        for row in model["versions"]:
            cells = (
                name,
                row["version"],
                row["server_count"],
                row["default_count"],
                row["request_count"],
                row["failed_count"],
                f"{row['p99_ms']:.1f}",
                f"{row['p999_ms']:.1f}",
            )
            print("\t".join(printable(str(cell)) for cell in cells))


def print_servers(servers: Sequence[Mapping[str, Any]]) -> None:
    """Prints a row for each server, with tabs."""
    print("server\tstate\tseen\tversions")
    for row in servers:
        versions = ", ".join(
            f"{model} {'-' if version is None else version}"
            for model, version in row["versions"].items()
        )
        seen = "not yet" if row["state"] == "unknown" else f"{row['seen_seconds']} s ago"
        cells = (row["name"], row["state"], seen, versions)
        print("\t".join(printable(str(cell)) for cell in cells))


def print_replicas(reply: Mapping[str, Any]) -> None:
    """Prints a row for each server that the fleet has started, with tabs."""
    print("server\tphase\trestart\tnode\taddress")
    for row in reply["replicas"]:
        restart = "to come" if row["is_to_restart"] else ""
        phase = "not ready" if row["phase"] == "up" and not row["is_ready"] else row["phase"]
        cells = (row["name"], phase, restart, row["node"][:_NODE_LENGTH], row["grpc"])
        print("\t".join(printable(str(cell)) for cell in cells))
    for model, count in reply["missing"].items():
        print(printable(f"{model}: replicas without a node with room: {count}"))


def _print_service_config(parsed: argparse.Namespace) -> int:
    """Prints gRPC's service config. It needs no coordinator."""
    from fleet.files.service_config import dns_text, stock_service_config

    config = stock_service_config(parsed.health_service)
    print(dns_text(config) if parsed.dns else json.dumps(config, indent=2))
    return 0


def _start(parsed: argparse.Namespace) -> int:
    """Runs the coordinator on this thread until SIGTERM or Ctrl-C."""
    stopped = {signal.SIGTERM, signal.SIGINT}
    # Blocked before the first thread starts, so that `_stop_at_signal` alone gets the signals. The
    # imports below start threads.
    signal.pthread_sigmask(signal.SIG_BLOCK, stopped)
    from fleet.config.config import read_fleet_config
    from fleet.service import FleetService
    from serving.base.clock import SystemClock
    from serving.server.logs import flush_logs, start_logs

    config = read_fleet_config(parsed.config)
    start_logs(parsed.log_format)
    service: FleetService | Front
    try:
        if config.ray is None:
            service = FleetService(config, SystemClock())
        else:
            service = _front(config, parsed.config.read_text(encoding="utf-8"))
        # Daemon: it waits for a signal that never comes if the port is taken.
        waiter = threading.Thread(
            target=_stop_at_signal, args=(stopped, service.stop), name="signals", daemon=True
        )
        waiter.start()
        service.run()
    finally:
        flush_logs()
    return 0


def _front(config: "FleetConfig", text: str) -> "Front":
    """Returns the process beside a fleet on Ray, which puts the fleet on its cluster once it listens."""
    from fleet.ray import deploy
    from fleet.ray.front import Front
    from serving.base.clock import SystemClock

    return Front(config, lambda: deploy(text), SystemClock())


def _stop(parsed: argparse.Namespace) -> int:
    """Drains all servers of a fleet on Ray, and ends its coordinator."""
    from fleet.config.config import read_fleet_config

    if read_fleet_config(parsed.config).ray is None:
        raise FailedPrecondition(
            f"{parsed.config} has no table [ray]: the fleet has not started its servers, so end "
            "them, and the process of millpond fleet start, with SIGTERM"
        )
    from fleet.ray.deployment import attach

    attach(parsed.config.read_text(encoding="utf-8")).shut_down()
    print("the fleet has stopped: all its servers have drained")
    return 0


def _stop_at_signal(signals: Collection[signal.Signals], stop: Callable[[], None]) -> None:
    signal.sigwait(signals)
    stop()


def _ask(
    target: str | None, method: str, path: str, body: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the coordinator's reply. Raises NotFound, Unavailable, or its refusal."""
    address = _found_target(is_operation=body is not None) if target is None else target
    connection = _connection(address)
    try:
        connection.request(method, path, None if body is None else json.dumps(body).encode())
        response = connection.getresponse()
        reply: dict[str, Any] = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unavailable(
            f"no coordinator answers at {address} ({error}); start one (millpond fleet start), "
            "or give --target=unix:PATH or --target=HOST:PORT"
        ) from error
    finally:
        connection.close()
    if response.status == 200:
        return reply
    kinds: Mapping[int, type[MillpondError]] = {
        400: FailedPrecondition,
        403: PermissionDenied,
        404: NotFound,
        503: Unavailable,
    }
    raise kinds.get(response.status, InvalidArgument)(str(reply.get("error")))


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a UNIX socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        """Implements HTTPConnection."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connection(address: str) -> http.client.HTTPConnection:
    """Returns a connection to a target. Raises InvalidArgument."""
    if address.startswith("unix:"):
        return _UnixConnection(address.removeprefix("unix:"))
    if not is_host_and_port(address):
        raise InvalidArgument(f"--target={address} is not HOST:PORT or unix:PATH")
    return http.client.HTTPConnection(address, timeout=_TIMEOUT_SECONDS)


def _found_target(*, is_operation: bool) -> str:
    """Returns the operators' door of the only coordinator of this user.

    Without one the status may still be at the default address. Raises NotFound, and InvalidConfig if
    there are several.
    """
    directories = run_directories(os.environ, os.geteuid())
    targets = [f"unix:{path}" for path in live_sockets(directories, FLEET_SUFFIX)]
    if len(targets) > 1:
        raise InvalidConfig(
            f"{len(targets)} coordinators of this user run on this machine; choose one: "
            f"{listed((f'--target={item}' for item in targets), ' or ')}"
        )
    if targets:
        return targets[0]
    if is_operation:
        raise NotFound(
            f"no coordinator of this user has a socket in {' or '.join(map(str, directories))}; start "
            "one (millpond fleet start), or give --target=unix:PATH or --target=HOST:PORT"
        )
    return DEFAULT_LISTEN


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="millpond fleet",
        description="Swap versions over many servers in waves: docs/fleet.md.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="COMMAND")
    start = actions.add_parser(
        "start", help="run the coordinator until SIGTERM", allow_abbrev=False
    )
    start.add_argument("config", type=Path, metavar="CONFIG", help="the fleet's TOML file")
    start.add_argument(
        "--log_format",
        choices=("auto", "human", "json"),
        default="auto",
        help="format of the log on standard error; auto: human on a terminal, else json",
    )
    config = actions.add_parser(
        "service-config",
        help="print gRPC's service config for stock clients of several servers",
        allow_abbrev=False,
    )
    config.add_argument(
        "--health_service",
        default="",
        metavar="MODEL",
        help="watch the health of this model; default: of the server",
    )
    config.add_argument(
        "--dns", action="store_true", help="print the TXT record of _grpc_config.NAME"
    )
    stop = actions.add_parser(
        "stop", help="drain all servers of a fleet on Ray, and end it", allow_abbrev=False
    )
    stop.add_argument("config", type=Path, metavar="CONFIG", help="the fleet's TOML file")
    restart = actions.add_parser(
        "restart",
        help="restart the servers of a fleet on Ray, one after the other",
        allow_abbrev=False,
    )
    restart.add_argument(
        "model", nargs="?", default="", metavar="MODEL", help="only the servers of this model"
    )
    _add_target(restart)
    replicas = actions.add_parser(
        "replicas",
        help="print the servers of a fleet on Ray, with their nodes, and which restart",
        allow_abbrev=False,
    )
    _add_target(replicas)
    for name, summary in (
        ("status", "print the models, their rollouts and the servers"),
        ("versions", "print the versions with their requests over all servers"),
    ):
        shown = actions.add_parser(name, help=summary, allow_abbrev=False)
        shown.add_argument("--json", action="store_true", help="print the whole reply")
        _add_target(shown)
    for name, summary in _OPERATIONS.items():
        operation = actions.add_parser(name, help=summary, allow_abbrev=False)
        operation.add_argument("model", type=model_name, metavar="MODEL")
        if name == "allow":
            operation.add_argument("version", type=version_number, metavar="VERSION")
        if name in ("abort", "rollback"):
            operation.add_argument("--reason", default="", help="the reason, for the status")
        _add_target(operation)
    return parser


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target",
        metavar="HOST:PORT",
        help="the coordinator, or unix:PATH; default: the one that this user runs on this machine",
    )
    # The name of earlier releases.
    parser.add_argument("--coordinator", dest="target", help=argparse.SUPPRESS)
