"""Load tests: python -m loadtest COMMAND --help.

    run        load on a server that is there
    swap       a server of a preset, its model swapped under load
    ablation   `swap` for every preset in turn: what each step buys
    neighbour  one model under load while another one reloads
    start      how long a server with many small models takes until it is ready
    soak       random changes of versions, config and disk under load: nothing may fail
    life       how long a rollback takes, and how soon a dropped version serves
    memory     how much of a large version's memory a server keeps once it is unloaded
    monitoring what scrapes of /metrics and an open page do to the tail of gRPC
    hostile    what slow, half-sent, idle and never-reading connections do to other clients
    p999       the server's p999 beside that of its clients, of the same requests
    transports what TLS and compression cost gRPC
    queues     what the number of completion queues and request threads does
    rest       REST beside FastAPI with a tf.function, and what it does to the tail of gRPC
    null       the generator against a server that does nothing: what it measures of itself

Exit status 1 where a request failed or was answered wrongly, or what was asked for cannot be done; 2
for a command line that says nothing that can be done.
"""

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from types import FrameType

from loadtest.ablation import ABLATION
from loadtest.hostile import HOSTILE
from loadtest.life import LIFE
from loadtest.monitoring import MONITORING
from loadtest.neighbour import NEIGHBOUR
from loadtest.options import Command
from loadtest.p999 import P999
from loadtest.plain_run import NULL, RUN
from loadtest.queues import QUEUES
from loadtest.rest import REST
from loadtest.soak import SOAK
from loadtest.start import START
from loadtest.swap_command import SWAP
from loadtest.transports import TRANSPORT
from loadtest.unload_memory import MEMORY
from serving.base.closed_pipe import until_closed_pipe
from serving.base.errors import MillpondError

COMMANDS: Mapping[str, Command] = {
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
    "p999": P999,
    "transports": TRANSPORT,
    "queues": QUEUES,
    "rest": REST,
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
    """As at Ctrl-C: whatever was started is stopped on the way out."""
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
