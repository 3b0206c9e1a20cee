"""Warm-up files: python -m warmup COMMAND --help.

    synthesize  write requests that fit a version's signatures
    inspect     print what is in a file
    check       find what would keep the version from being loaded
    from-log    write a sample of a request log, also as golden answers

`millpond capture` writes a file of live requests. The exit status is 1 if a fault was found or the
command failed, and 2 if the command line is wrong.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from serving.base.closed_pipe import until_closed_pipe
from serving.base.errors import InvalidConfig, MillpondError, NotFound
from serving.base.name_text import listed
from serving.base.signatures import signature_of
from warmup.faults import find_faults, log_faults
from warmup.inspection import RecordSummary, inspect, totals_of
from warmup.prediction_log import (
    RECORD_COUNT_MAX,
    Log,
    read_logs,
    warm_up_file,
    write_logs,
)
from warmup.record_table import print_records
from warmup.request_log import LogSample
from warmup.signature_defs import (
    DEFAULT_TAGS,
    is_version,
    read_signature_defs,
    require_version,
)
from warmup.synthesis import SynthesisSettings, synthesize

_FAULTS_SHOWN_MAX = 5


@dataclass(frozen=True)
class Command:
    """A command: its line in the help, its options, and the function that runs it and returns the
    exit status.
    """

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0, 1 if it failed or found a fault, 2 for wrong
    usage, or the status of a command that Ctrl-C or a closed pipe ended.
    """
    return until_closed_pipe(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    try:
        parsed = _parser().parse_args(arguments)
    except SystemExit as exit_by_argparse:  # --help, or wrong usage, which argparse has reported.
        return int(exit_by_argparse.code or 0)
    try:
        status: int = parsed.run(parsed)
    except BrokenPipeError:
        raise
    except (MillpondError, OSError) as error:
        print(f"warmup {parsed.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _synthesize(parsed: argparse.Namespace) -> int:
    path = parsed.output or warm_up_file(parsed.directory)
    definitions = read_signature_defs(parsed.directory, parsed.tags)
    settings = SynthesisSettings(
        batch_sizes=parsed.batch_sizes,
        open_size=parsed.dim,
        int_max=parsed.int_max,
        count=parsed.count,
        seed=parsed.seed,
    )
    name = parsed.directory.resolve().parent.name
    synthesis = synthesize(definitions, name, settings, parsed.signature)
    if path.exists() and not parsed.force:
        raise InvalidConfig(f"{path} exists; --force overwrites it")
    write_logs(path, synthesis.logs)
    for signature_name, obstacle in synthesis.left_out.items():
        print(f"left out signature {signature_name!r}: {obstacle}", file=sys.stderr)
    print(f"{path}: {len(synthesis.logs)} records")
    return 0


def _from_log(parsed: argparse.Namespace) -> int:
    path = warm_up_file(parsed.output)
    if path.exists() and not parsed.force:
        raise InvalidConfig(f"{path} exists; --force overwrites it")
    if os.path.realpath(path) in map(os.path.realpath, parsed.logs):
        raise InvalidConfig(
            f"{path} is one of the logs, which are only read; give another --output"
        )
    sample = LogSample(
        parsed.count,
        seed=parsed.seed,
        has_responses=parsed.with_responses,
        faults_of=_faults_for(parsed.output, parsed.tags),
    )
    for log_path in parsed.logs:
        sample.add(read_logs(log_path))
    for fault, count in sample.fault_counts.most_common(_FAULTS_SHOWN_MAX):
        print(f"left out {count} records that the version cannot replay: {fault}", file=sys.stderr)
    logs = sample.logs()
    if not logs and sample.fault_counts:
        raise InvalidConfig(
            f"{parsed.output}: the version can replay no record of the log; is it of another model, or does "
            "`inputs` of the request log leave out what the signature needs?"
        )
    if not logs:
        raise NotFound(
            f"{listed(map(str, parsed.logs))}: no request of a predict_log is in them; "
            "give complete files of the request log"
        )
    write_logs(path, logs)
    if sample.left_out_count:
        print(f"left out {sample.left_out_count} records that are no predict_log", file=sys.stderr)
    golden = ", with golden answers" if parsed.with_responses else ""
    print(f"{path}: {len(logs)} records{golden}")
    return 0


def _faults_for(output: Path, tags: Sequence[str]) -> Callable[[Log], Iterable[str]]:
    """Returns what finds the faults of a log for the version at `output`; it finds none without a version."""
    if not is_version(output):
        print(
            f"{output} is no version: the records are held against no signatures; do so by "
            "`python -m warmup check`, or give the version's directory as --output",
            file=sys.stderr,
        )
        return lambda _: ()
    definitions = read_signature_defs(output, tags)
    signatures = {name: signature_of(definition) for name, definition in definitions.items()}
    return lambda log: log_faults(log, signatures)


def _inspect(parsed: argparse.Namespace) -> int:
    path = _file_that_is_there(parsed.path)
    summaries: list[RecordSummary] = []
    try:
        for summary in inspect(path):
            summaries.append(summary)  # noqa: PERF402
    except (MillpondError, OSError):
        # The records before the damaged one are shown.
        if summaries:
            _print_summaries(path, summaries, is_json=parsed.json)
        raise
    _print_summaries(path, summaries, is_json=parsed.json)
    return 0


def _print_summaries(path: Path, summaries: Sequence[RecordSummary], *, is_json: bool) -> None:
    totals = totals_of(summaries)
    if is_json:
        rows = [asdict(summary) for summary in summaries]
        print(json.dumps({"file": str(path), "records": rows, "totals": asdict(totals)}))
    else:
        print_records(summaries, totals, sys.stdout)


def _check(parsed: argparse.Namespace) -> int:
    definitions = read_signature_defs(parsed.directory, parsed.tags)
    signatures = {name: signature_of(definition) for name, definition in definitions.items()}
    path = _file_that_is_there(parsed.directory)
    is_sound = True
    for fault in find_faults(path, signatures):
        is_sound = False
        print(fault)
    if is_sound:
        print(f"{path}: sound")
    return 0 if is_sound else 1


def _file_that_is_there(path: Path) -> Path:
    """Finds the warm-up file at `path`, a file or a version. Raises NotFound with the remedy."""
    file = warm_up_file(path)
    if file.exists():
        return file
    if not path.is_dir():
        raise NotFound(f"{path} does not exist; give a warm-up file, or a version's directory")
    require_version(path)
    raise NotFound(
        f"{file} does not exist: this version has no warm-up file; `python -m warmup synthesize {path}` "
        f"or `millpond capture MODEL --output {path}` writes one"
    )


# --- The command line -----------------------------------------------------------------------------


def _add_synthesize(parser: argparse.ArgumentParser) -> None:
    _add_version(parser)
    parser.add_argument(
        "--signature", action="append", default=[], metavar="NAME", help="default: all signatures"
    )
    parser.add_argument(
        "--batch-sizes",
        type=_batch_sizes,
        default=(1,),
        metavar="1,8,64",
        help="sizes of the first dimension if it is open (default 1)",
    )
    parser.add_argument(
        "--count", type=_positive, default=1, help="requests of each size (default 1)"
    )
    parser.add_argument(
        "--dim", type=_positive, default=1, help="size of other open dimensions (default 1)"
    )
    parser.add_argument(
        "--int-max",
        type=_not_negative,
        default=1,
        help="largest integer value; ids that the model does not have would fail (default 1)",
    )
    parser.add_argument(
        "--seed", type=_not_negative, default=0, help="seed of the values (default 0)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="default: the version's own file"
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def _add_from_log(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "logs", type=Path, nargs="+", metavar="LOG", help="complete TFRecord files of a request log"
    )
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="FILE|DIR",
        help="the file to write, or a version's directory",
    )
    parser.add_argument(
        "--count",
        type=_record_count,
        default=RECORD_COUNT_MAX,
        help=f"most records (default {RECORD_COUNT_MAX:,})",
    )
    parser.add_argument(
        "--with-responses",
        action="store_true",
        help="keep the answers, with which the gate `golden` compares",
    )
    parser.add_argument(
        "--seed", type=_not_negative, default=0, help="seed of the sample (default 0)"
    )
    _add_tags(parser)
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", type=Path, metavar="FILE|DIR", help="a file, or a version's directory"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _add_version(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="a version's directory")
    _add_tags(parser)


def _add_tags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tags",
        type=lambda text: tuple(text.split(",")),
        default=DEFAULT_TAGS,
        help="tags of the meta graph, like the server's --saved_model_tags (default serve)",
    )


COMMANDS: Mapping[str, Command] = {
    "synthesize": Command(
        "write requests that fit a version's signatures", _add_synthesize, _synthesize
    ),
    "inspect": Command("print what is in a file", _add_inspect, _inspect),
    "check": Command("find what would keep the version from being loaded", _add_version, _check),
    "from-log": Command(
        "write a sample of a request log, also as golden answers", _add_from_log, _from_log
    ),
}


def _batch_sizes(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _positive(text: str) -> int:
    return _at_least(1, text)


def _record_count(text: str) -> int:
    count = _positive(text)
    if count > RECORD_COUNT_MAX:
        raise argparse.ArgumentTypeError(f"{text}: a server accepts {RECORD_COUNT_MAX} records")
    return count


def _not_negative(text: str) -> int:
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    value = int(text) if text.strip().lstrip("-").isdecimal() else least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least {least}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m warmup",
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
    sys.exit(main())
