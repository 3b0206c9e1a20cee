"""Load tests: python -m loadtest COMMAND --help.

    demo       swaps a version in and out under load, and shows the clients' figures
    bench      start and requests per second, also over REST beside FastAPI
    run        load on a running server, or on one that does nothing
    swap       servers whose model is swapped under load: presets, and servers of any command
    turns      servers compared in short turns, also at shares of what they can do
    beside     a steady load beside hostile connections, visits of the pages, or REST
    soak       random changes of versions, config and disk under load: no request may fail
    life       rollbacks, stops, crashes, the start of many models, deltas, attacks, the request log
    p999       the server's p999 beside its clients' p999, of the same requests
    canary     how often a canary's rule stops good and slow versions on machines that pause
    delta      the rows of a delta version after training, by optimizer, and what writing one costs
    fresh      how soon answers have the rows that a trainer changes, and the tail meanwhile
    gpu        a machine's CPUs beside its accelerator: equality, rates, swaps, neighbours, dense models
    fleet      a simulated fleet of up to 10,000 servers with faults: the coordinator's promises
    fleet-ray  a fleet on a Ray cluster of this machine: bad versions and deaths, behind HAProxy

The exit status is 1 if a request failed or was answered wrongly, or if the command failed, and 2 if
the command line is wrong.
"""

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from types import FrameType

from loadtest.commands.bench import BENCH
from loadtest.commands.beside import BESIDE
from loadtest.commands.canary import CANARY
from loadtest.commands.delta import DELTA
from loadtest.commands.demo import DEMO
from loadtest.commands.fleet import FLEET
from loadtest.commands.fleet_ray import FLEET_RAY
from loadtest.commands.fresh import FRESH
from loadtest.commands.gpu import GPU
from loadtest.commands.life import LIFE
from loadtest.commands.options import Command, add_commands
from loadtest.commands.p999 import P999
from loadtest.commands.plain_run import RUN
from loadtest.commands.soak import SOAK
from loadtest.commands.swap import SWAP
from loadtest.commands.turns import TURNS
from serving.base.closed_pipe import EXIT_FAILURE, EXIT_USAGE, until_closed_pipe
from serving.base.errors import InvalidConfig, MillpondError

COMMANDS: Mapping[str, Command] = {
    "demo": DEMO,
    "bench": BENCH,
    "run": RUN,
    "swap": SWAP,
    "turns": TURNS,
    "beside": BESIDE,
    "soak": SOAK,
    "life": LIFE,
    "p999": P999,
    "canary": CANARY,
    "delta": DELTA,
    "fresh": FRESH,
    "gpu": GPU,
    "fleet": FLEET,
    "fleet-ray": FLEET_RAY,
}


GONE_COMMANDS: Mapping[str, str] = {
    **dict.fromkeys(("ablation", "neighbour", "memory"), "swap"),
    **dict.fromkeys(
        ("saturation", "variants", "queues", "transports", "overload", "budget"), "turns"
    ),
    **dict.fromkeys(("hostile", "monitoring", "rest"), "beside"),
    **dict.fromkeys(("stops", "crashes", "start", "store"), "life"),
    "null": "run",
    "fleet-cost": "fleet",
}
"""Commands of earlier versions, and the command that does their work now."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    return until_closed_pipe(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in GONE_COMMANDS:
        command = GONE_COMMANDS[given[0]]
        print(
            f"loadtest: {given[0]} is a part of {command} now: python -m loadtest {command} --help",
            file=sys.stderr,
        )
        return EXIT_USAGE
    parsed = _parser().parse_args(given)
    try:
        status = COMMANDS[parsed.command].run(parsed)
    except BrokenPipeError:
        raise
    except (MillpondError, OSError) as error:
        print(f"loadtest {parsed.command}: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, InvalidConfig) else EXIT_FAILURE
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
    add_commands(parser, COMMANDS, dest="command")
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _exit_in_order)
    sys.exit(main())
