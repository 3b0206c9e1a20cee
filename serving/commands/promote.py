"""`millpond promote`: a model's canary answers all its requests."""

from collections.abc import Sequence

from serving.commands.connection import connect
from serving.commands.model_parser import model_parser


def run(arguments: Sequence[str]) -> int:
    """Prints the version that serves now. Raises MillpondError, FailedPrecondition without a canary."""
    parser = model_parser("promote", "Let a model's canary answer all requests.")
    parsed = parser.parse_args(arguments)
    with connect(parsed) as client:
        version = client.promote(parsed.model)
    print(f"{parsed.model}: version {version} serves")
    return 0
