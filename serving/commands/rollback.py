"""`millpond rollback`: puts a model's previous version back in its place."""

from collections.abc import Sequence

from serving.commands.connection import connect, warn
from serving.commands.model_parser import model_parser


def run(arguments: Sequence[str]) -> int:
    """Prints the version that serves now. Raises MillpondError, and then nothing has changed."""
    parser = model_parser(
        "rollback",
        "Let the version before the one that serves take its place again, at once. The replaced "
        "version is blocked until `millpond allow`; a newer version that is dropped serves as usual.",
    )
    parser.add_argument(
        "--cold",
        action="store_true",
        help="if no earlier version is in memory, load one from disk while this one serves on",
    )
    parsed = parser.parse_args(arguments)
    with connect(parsed) as client:
        done = client.rollback(parsed.model, is_cold_allowed=parsed.cold)
    if done.version is None:
        print(f"{parsed.model}: an earlier version than {done.rolled_back} is being loaded")
    else:
        print(
            f"{parsed.model}: version {done.version} serves, version {done.rolled_back} is blocked"
        )
    for blocked in done.blocked:
        print(f"{parsed.model}: version {blocked.version} is blocked: {blocked.reason}")
    warn("rollback", done.warning)
    return 0
