"""`millpond fleet`: starts the coordinator of a fleet, and operates one that runs."""

import argparse
import json
import signal
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.commands.coordinator_call import ask
from fleet.commands.status_text import print_models, print_replicas, print_servers, print_versions
from fleet.config.config import OPERATION_PATH, REPLICAS_PATH, STATUS_PATH, read_fleet_text
from serving.base.errors import FailedPrecondition
from serving.base.name_text import printable
from serving.commands.argument_types import model_name, version_number

if TYPE_CHECKING:
    from fleet.config.config import FleetConfig
    from fleet.ray.front import Front

    # argparse has no public name for it.
    Actions = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001

_OPERATIONS: Mapping[str, str] = {
    "promote": "let the version on its way go to all servers without a further judgement",
    "abort": "block the version on its way, and roll every server back",
    "rollback": "roll every server back to the version before, and block the newer one",
    "pause": "let no further server begin to swap",
    "resume": "let a paused rollout go on",
    "allow": "unblock a version in the fleet",
}


def run(arguments: Sequence[str]) -> int:
    """Runs `millpond fleet` with these arguments, and returns the exit status. Raises MillpondError."""
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
    """Prints the servers that the fleet has started. The action "restart" asks for their restart first."""
    if parsed.action == "restart":
        reply = ask(parsed.target, "POST", REPLICAS_PATH, {"model": parsed.model})
    else:
        reply = ask(parsed.target, "GET", REPLICAS_PATH)
    print_replicas(reply)
    return 0


def _operate(parsed: argparse.Namespace) -> int:
    request = {
        "operation": parsed.action,
        "model": parsed.model,
        "version": getattr(parsed, "version", None),
        "reason": getattr(parsed, "reason", ""),
    }
    status = ask(parsed.target, "POST", OPERATION_PATH, request)
    # The reason to wait is left out, because it is from the last decision before the operation.
    print_models({parsed.model: {**status["models"][parsed.model], "waits_for": ""}})
    return 0


def _show(parsed: argparse.Namespace) -> int:
    status = ask(parsed.target, "GET", STATUS_PATH)
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


def _print_service_config(parsed: argparse.Namespace) -> int:
    """Prints gRPC's service config. No coordinator needs to run."""
    from fleet.files.service_config import dns_text, stock_service_config

    config = stock_service_config(parsed.health_service)
    print(dns_text(config) if parsed.dns else json.dumps(config, indent=2))
    return 0


def _start(parsed: argparse.Namespace) -> int:
    """Runs the coordinator on this thread until SIGTERM or Ctrl-C."""
    stopped = {signal.SIGTERM, signal.SIGINT}
    # The signals are blocked before the imports below start threads, so that only `_stop_at_signal` gets them.
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
            service = _front(config, read_fleet_text(parsed.config))
        # A daemon thread: if `run` fails, no signal comes, and the thread must not keep the process alive.
        waiter = threading.Thread(
            target=_stop_at_signal, args=(stopped, service.stop), name="signals", daemon=True
        )
        waiter.start()
        service.run()
    finally:
        flush_logs()
    return 0


def _front(config: "FleetConfig", text: str) -> "Front":
    """Makes the front of a fleet on Ray.

    When its port is open, the front deploys the fleet to the cluster.
    """
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

    attach(read_fleet_text(parsed.config)).shut_down()
    print("the fleet has stopped: all its servers have drained")
    return 0


def _stop_at_signal(signals: Collection[signal.Signals], stop: Callable[[], None]) -> None:
    signal.sigwait(signals)
    stop()


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="millpond fleet",
        description="Swap versions over many servers in waves: docs/fleet.md.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="COMMAND")
    _add_start(actions)
    _add_service_config(actions)
    _add_ray_commands(actions)
    for name, summary in (
        ("status", "print the models, their rollouts and the servers"),
        ("versions", "print the versions with their requests over all servers"),
    ):
        shown = _added(actions, name, summary)
        shown.add_argument("--json", action="store_true", help="print the whole reply")
        _add_target(shown)
    for name, summary in _OPERATIONS.items():
        _add_operation(actions, name, summary)
    return parser


def _added(actions: "Actions", name: str, summary: str) -> argparse.ArgumentParser:
    return actions.add_parser(name, help=summary, allow_abbrev=False)


def _add_start(actions: "Actions") -> None:
    start = _added(actions, "start", "run the coordinator until SIGTERM")
    start.add_argument("config", type=Path, metavar="CONFIG", help="the fleet's TOML file")
    start.add_argument(
        "--log_format",
        choices=("auto", "human", "json"),
        default="auto",
        help="format of the log on standard error; auto: human on a terminal, else json",
    )


def _add_service_config(actions: "Actions") -> None:
    config = _added(
        actions,
        "service-config",
        "print gRPC's service config for stock clients of several servers",
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


def _add_ray_commands(actions: "Actions") -> None:
    stop = _added(actions, "stop", "drain all servers of a fleet on Ray, and end it")
    stop.add_argument("config", type=Path, metavar="CONFIG", help="the fleet's TOML file")
    restart = _added(
        actions, "restart", "restart the servers of a fleet on Ray, one after the other"
    )
    restart.add_argument(
        "model", nargs="?", default="", metavar="MODEL", help="only the servers of this model"
    )
    _add_target(restart)
    summary = "print the servers of a fleet on Ray, with their nodes, and which restart"
    _add_target(_added(actions, "replicas", summary))


def _add_operation(actions: "Actions", name: str, summary: str) -> None:
    operation = _added(actions, name, summary)
    operation.add_argument("model", type=model_name, metavar="MODEL")
    if name == "allow":
        operation.add_argument("version", type=version_number, metavar="VERSION")
    if name in ("abort", "rollback"):
        operation.add_argument("--reason", default="", help="the reason, for the status")
    _add_target(operation)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target",
        metavar="HOST:PORT",
        help="the coordinator, or unix:PATH; default: the one that this user runs on this machine",
    )
    # The name of this flag in earlier releases.
    parser.add_argument("--coordinator", dest="target", help=argparse.SUPPRESS)
