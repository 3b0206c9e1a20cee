"""`life`: scenarios of the life of a server and its versions: rollbacks and drops, stops, crashes, the
start of many models, object storage, delta versions, attacks, the request log.
"""

import argparse
from collections.abc import Mapping
from types import MappingProxyType

from loadtest.commands.attacks import ATTACKS
from loadtest.commands.crashes import CRASHES
from loadtest.commands.delta_soak import DELTA_SOAK
from loadtest.commands.deltas import DELTAS
from loadtest.commands.options import Command, add_commands
from loadtest.commands.request_log import REQUEST_LOG
from loadtest.commands.start import START
from loadtest.commands.stops import STOPS
from loadtest.commands.store import STORE
from loadtest.commands.versions import VERSIONS

SCENARIOS: Mapping[str, Command] = MappingProxyType(
    {
        "versions": VERSIONS,
        "stops": STOPS,
        "crashes": CRASHES,
        "start": START,
        "store": STORE,
        "deltas": DELTAS,
        "delta-soak": DELTA_SOAK,
        "attacks": ATTACKS,
        "request-log": REQUEST_LOG,
    }
)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_commands(parser, SCENARIOS, dest="scenario")


def _run(parsed: argparse.Namespace) -> int:
    return SCENARIOS[parsed.scenario].run(parsed)


LIFE = Command(
    "rollbacks, stops, crashes, the start of many models, object storage, deltas, attacks, request log",
    _add_options,
    _run,
)
