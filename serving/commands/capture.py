"""`millpond capture`: writes a model's recent live requests into a warm-up file."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from serving.base.errors import InvalidConfig, NotFound, from_exception
from serving.client import Client, Signature
from serving.commands.argument_types import model_name, positive_number, whole_number
from serving.commands.connection import add_connection, connect
from warmup.capture import answered_logs
from warmup.faults import log_faults
from warmup.prediction_log import (
    RECORD_COUNT_MAX,
    Log,
    has_response,
    parse_log,
    warm_up_file,
    write_logs,
)
from warmup.signature_defs import require_version


def run(arguments: Sequence[str]) -> int:
    """Writes the file, and prints how many records it has. If it raises MillpondError, nothing is written."""
    parsed = make_parser().parse_args(arguments)
    path = _file_to_write(parsed.output)
    if path.exists() and not parsed.force:
        raise InvalidConfig(f"{path} exists; --force overwrites it")
    with connect(parsed) as client:
        logs = _captured(client, parsed)
    try:
        write_logs(path, logs)
    except OSError as error:
        raise from_exception(error) from error
    print_result(path, logs)
    return 0


def _file_to_write(output: Path) -> Path:
    """The file to write. Raises NotFound for a wrong `output`, so that no server is called in vain."""
    if output.is_dir():
        try:
            require_version(output)
        except NotFound as error:
            raise NotFound(
                f"--output: {error}; give a version's directory, or a file to write"
            ) from error
    elif not output.parent.is_dir():
        raise NotFound(
            f"--output={output}: {output.parent} is not a directory; create it, or give another path"
        )
    return warm_up_file(output)


def print_result(path: Path, logs: Sequence[Log]) -> None:
    """Prints the path, and the numbers of records and responses, in one line."""
    answered_count = sum(map(has_response, logs))
    print(f"{path}: {len(logs)} records, {answered_count} with a response", file=sys.stdout)


def _captured(client: Client, parsed: argparse.Namespace) -> list[Log]:
    records = client.capture_warm_up(parsed.model, count_max=parsed.count)
    source = Path(parsed.target)
    logs = [parse_log(number, record, source) for number, record in enumerate(records, start=1)]
    logs = _fitting(logs, client.signatures(parsed.model))
    if not parsed.with_responses:
        return logs
    answer = partial(client.predict_message, timeout_seconds=parsed.timeout_seconds)
    return answered_logs(logs, answer)


def _fitting(logs: Sequence[Log], signatures: Mapping[str, Signature]) -> list[Log]:
    """The requests that the version which serves now accepts.

    A request that only an older version accepted would make the warm-up of the next version fail.
    """
    fitting = [log for log in logs if not any(log_faults(log, signatures))]
    if len(fitting) < len(logs):
        print(
            f"left out {len(logs) - len(fitting)} of {len(logs)} requests, which the version that "
            "serves now would refuse",
            file=sys.stderr,
        )
    return fitting


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="millpond capture",
        description="Write MODEL's recent live requests into a warm-up file, which the next version "
        "replays before it serves. The server keeps a few of each kind (--self_warmup_requests), "
        "for ten minutes. They hold what clients sent: keep the file as safe as their data.",
        allow_abbrev=False,
    )
    parser.add_argument("model", type=model_name, metavar="MODEL")
    add_connection(parser)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        required=True,
        help="file to write, or a version's directory: then its warm-up file",
    )
    parser.add_argument(
        "--count",
        type=whole_number(1, RECORD_COUNT_MAX),
        default=RECORD_COUNT_MAX,
        help="records at most, default %(default)s",
    )
    parser.add_argument(
        "--with_responses",
        "--with-responses",
        action="store_true",
        help="send each request once to the version that serves now, and keep its answer beside it "
        "for the golden gate (not for a model whose requests change it)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_argument(
        "--timeout_seconds",
        type=positive_number,
        default=60,
        help="timeout of each request, default %(default)s",
    )
    return parser
