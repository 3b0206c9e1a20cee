"""Load tests: python -m loadtest COMMAND --help.

    demo       swaps a version in and out under load, and shows the clients' figures
    bench      start, requests per second and swaps: figures of docs/figures.md
    run        load on a running server
    swap       a server of a preset whose model is swapped under load
    ablation   `swap` for every preset in turn: the effect of each step
    neighbour  one model under load while another one reloads
    start      how long a server with many small models takes until it is ready
    soak       random changes of versions, config and disk under load: no request may fail
    life       how long a rollback takes, and how soon a dropped version serves
    memory     how much of a large version's memory a server keeps once it is unloaded
    monitoring the effect of scrapes of /metrics and an open page on the tail of gRPC
    hostile    the effect of slow, half-sent, idle and never-reading connections on other clients
    stops      servers that are stopped under load: no request is lost
    crashes    a supervised server that a model crashes: what the clients of another model get
    overload   the answers of a server that gets more than it can do
    turns      servers of any command, compared in short turns
    saturation highest rates of servers of any command, and their latencies at shares of that
    budget     the processor time of a request, part by part, from a profile
    p999       the server's p999 beside its clients' p999, of the same requests
    transports the cost of TLS and compression for gRPC
    queues     the effect of the number of request threads
    rest       REST compared to FastAPI with a tf.function, and its effect on the tail of gRPC
    canary     how often a canary's rule stops good and slow versions on machines that pause
    fleet      a simulated fleet of up to 10,000 servers with faults: the coordinator's promises
    fleet-cost the processor time and the messages of a fleet's coordinator, for each server
    fleet-ray  a fleet on a Ray cluster of this machine: bad versions and deaths, behind HAProxy
    null       the generator against a server that does nothing: the generator's own share

The exit status is 1 if a request failed or was answered wrongly, or if the command failed, and 2 if
the command line is wrong.
"""

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from types import FrameType

from loadtest.commands.ablation import ABLATION
from loadtest.commands.bench import BENCH
from loadtest.commands.budget import BUDGET
from loadtest.commands.canary import CANARY
from loadtest.commands.crashes import CRASHES
from loadtest.commands.demo import DEMO
from loadtest.commands.fleet import FLEET
from loadtest.commands.fleet_cost import FLEET_COST
from loadtest.commands.fleet_ray import FLEET_RAY
from loadtest.commands.hostile import HOSTILE
from loadtest.commands.life import LIFE
from loadtest.commands.monitoring import MONITORING
from loadtest.commands.neighbour import NEIGHBOUR
from loadtest.commands.options import Command
from loadtest.commands.overload import OVERLOAD
from loadtest.commands.p999 import P999
from loadtest.commands.plain_run import NULL, RUN
from loadtest.commands.queues import QUEUES
from loadtest.commands.rest import REST
from loadtest.commands.saturation import SATURATION
from loadtest.commands.soak import SOAK
from loadtest.commands.start import START
from loadtest.commands.stops import STOPS
from loadtest.commands.store import STORE
from loadtest.commands.swap_command import SWAP
from loadtest.commands.transports import TRANSPORT
from loadtest.commands.turns import TURNS
from loadtest.commands.unload_memory import MEMORY
from serving.base.closed_pipe import until_closed_pipe
from serving.base.errors import MillpondError

COMMANDS: Mapping[str, Command] = {
    "demo": DEMO,
    "bench": BENCH,
    "run": RUN,
    "swap": SWAP,
    "ablation": ABLATION,
    "neighbour": NEIGHBOUR,
    "start": START,
    "soak": SOAK,
    "life": LIFE,
    "memory": MEMORY,
    "monitoring": MONITORING,
    "hostile": HOSTILE,
    "stops": STOPS,
    "crashes": CRASHES,
    "overload": OVERLOAD,
    "turns": TURNS,
    "saturation": SATURATION,
    "budget": BUDGET,
    "p999": P999,
    "transports": TRANSPORT,
    "queues": QUEUES,
    "rest": REST,
    "store": STORE,
    "canary": CANARY,
    "fleet": FLEET,
    "fleet-cost": FLEET_COST,
    "fleet-ray": FLEET_RAY,
    "null": NULL,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    return until_closed_pipe(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parsed = _parser().parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
    except BrokenPipeError:
        raise
    except (MillpondError, OSError) as error:
        print(f"loadtest {parsed.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"loadtest {parsed.command}: interrupted", file=sys.stderr)
        return 130
    return status


def _exit_in_order(number: int, frame: FrameType | None) -> None:
    """Exits as Ctrl-C does, so that everything that was started is stopped."""
    del frame
    sys.exit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.add_arguments(
            subparser := commands.add_parser(name, help=command.summary, allow_abbrev=False)
        )
        subparser.set_defaults(run=command.run)
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _exit_in_order)
    sys.exit(main())
