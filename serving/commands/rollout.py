"""`millpond rollback`, `promote` and `allow`: change the version of a model that serves."""

import argparse
import sys
from collections.abc import Sequence

from serving.commands.argument_types import model_name, version_number
from serving.commands.connection import add_connection, connect, warn


def rollback(arguments: Sequence[str]) -> int:
    """Rolls a model back, and prints the version that serves now. A cold rollback waits until it serves.

    Raises MillpondError if the server has changed nothing, or cannot load an earlier version.
    """
    parsed = make_rollback_parser().parse_args(arguments)
    with connect(parsed) as client:
        done = client.rollback(parsed.model, is_cold_allowed=parsed.cold)
        if done.version is None:
            print(f"{parsed.model}: an earlier version than {done.rolled_back} is being loaded")
        else:
            _print_serving(parsed.model, done.version, done.rolled_back)
        for blocked in done.blocked:
            print(
                f"{parsed.model}: version {blocked.version} is blocked by the rollback: "
                f"{blocked.reason}"
            )
        warn("rollback", done.warning)
        if done.version is None and parsed.wait:
            sys.stdout.flush()  # The load may take minutes, and a script should see the lines now.
            version = client.wait_for_rollback(parsed.model, done.rolled_back)
            _print_serving(parsed.model, version, done.rolled_back)
    return 0


def _print_serving(model: str, version: int, rolled_back: int) -> None:
    print(f"{model}: version {version} serves, version {rolled_back} is blocked")


def promote(arguments: Sequence[str]) -> int:
    """Promotes the canary of a model, and prints the version that serves now.

    Raises FailedPrecondition if the model has no canary.
    """
    parsed = make_promote_parser().parse_args(arguments)
    with connect(parsed) as client:
        version = client.promote(parsed.model)
    print(f"{parsed.model}: version {version} serves")
    return 0


def allow(arguments: Sequence[str]) -> int:
    """Unblocks a version. Raises FailedPrecondition if the version is not blocked."""
    parsed = make_allow_parser().parse_args(arguments)
    with connect(parsed) as client:
        warning = client.allow(parsed.model, parsed.version)
    print(f"{parsed.model}: version {parsed.version} may serve again")
    warn("allow", warning)
    return 0


def make_rollback_parser() -> argparse.ArgumentParser:
    parser = _parser(
        "rollback",
        "Let the version before the one that serves take its place again, at once. The replaced "
        "version is blocked until `millpond allow`; a newer version that is dropped serves as usual.",
    )
    parser.add_argument(
        "--cold",
        action="store_true",
        help="if no earlier version is in memory, load one from disk while this one serves on, and "
        "return when it answers",
    )
    parser.add_argument(
        "--no-wait",
        dest="wait",
        action="store_false",
        help="with --cold: return at once, while the earlier version is still being loaded",
    )
    return parser


def make_promote_parser() -> argparse.ArgumentParser:
    return _parser("promote", "Let a model's canary answer all requests.")


def make_allow_parser() -> argparse.ArgumentParser:
    parser = _parser(
        "allow", "Unblock a version that was rolled back: it may be loaded and serve again."
    )
    parser.add_argument("version", metavar="VERSION", type=version_number)
    return parser


def _parser(command: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"millpond {command}", description=description, allow_abbrev=False
    )
    parser.add_argument("model", type=model_name, metavar="MODEL")
    add_connection(parser)
    return parser
