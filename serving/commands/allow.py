"""`millpond allow`: unblocks a version that was rolled back."""

from collections.abc import Sequence

from serving.commands.argument_types import version_number
from serving.commands.connection import connect, warn
from serving.commands.model_parser import model_parser


def run(arguments: Sequence[str]) -> int:
    """Raises MillpondError, FailedPrecondition if the version is not blocked."""
    parser = model_parser(
        "allow", "Unblock a version that was rolled back: it may be loaded and serve again."
    )
    parser.add_argument("version", metavar="VERSION", type=version_number)
    parsed = parser.parse_args(arguments)
    with connect(parsed) as client:
        warning = client.allow(parsed.model, parsed.version)
    print(f"{parsed.model}: version {parsed.version} may serve again")
    warn("allow", warning)
    return 0
