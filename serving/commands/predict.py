"""`millpond predict`: sends one request and prints the outputs."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from serving.base.clock import Clock, SystemClock, seconds_since
from serving.base.errors import InvalidArgument, NotFound
from serving.client import Client, Prediction, Signature
from serving.commands.argument_types import (
    model_name,
    positive_number,
    version_number,
    whole_number,
)
from serving.commands.connection import add_connection, connect
from serving.commands.predict_inputs import Array, inputs_from_json, random_inputs

DEFAULT_SIGNATURE = "serving_default"


def run(arguments: Sequence[str], clock: Clock | None = None) -> int:
    """Prints the version that answered, the latency of the request, and each output. Raises MillpondError."""
    clock = clock or SystemClock()
    parsed = make_parser().parse_args(arguments)
    document = None if parsed.input_json is None else _read_json(parsed.input_json)
    with connect(parsed) as client:
        signature = _signature(client, parsed)
        if document is None:
            inputs = random_inputs(signature, parsed.rows, parsed.seed)
        else:
            inputs = inputs_from_json(document, signature)
        started_ns = clock.now_ns()
        prediction = client.predict(
            parsed.model,
            inputs,
            version=parsed.version,
            signature_name=parsed.signature_name,
            timeout_seconds=parsed.timeout_seconds,
        )
        took_seconds = seconds_since(clock, started_ns)
    _print_prediction(parsed.model, prediction, took_seconds, sys.stdout)
    return 0


def _signature(client: Client, parsed: argparse.Namespace) -> Signature:
    signatures = client.signatures(parsed.model, parsed.version)
    if parsed.signature_name not in signatures:
        raise NotFound(
            f"model {parsed.model!r} has no signature {parsed.signature_name!r}; "
            f"it has {sorted(signatures)}"
        )
    return signatures[parsed.signature_name]


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{path}: cannot be read as JSON: {error}") from error


def _print_prediction(
    name: str, prediction: Prediction, took_seconds: float, stream: TextIO
) -> None:
    print(f"model {name}, version {prediction.version}, {took_seconds * 1e3:.1f} ms", file=stream)
    for output_name, array in sorted(prediction.outputs.items()):
        print(f"{output_name}: {_dtype_name(array)}{list(array.shape)}", file=stream)
        print(np.array2string(array, threshold=100), file=stream)


def _dtype_name(array: Array) -> str:
    return "string" if array.dtype.kind == "O" else array.dtype.name


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="millpond predict",
        description="Send one request to MODEL and print the outputs. "
        "Without --input_json the request is random data of the signature's shape.",
        allow_abbrev=False,
    )
    parser.add_argument("model", type=model_name, metavar="MODEL")
    add_connection(parser, is_operator=False)
    parser.add_argument(
        "--version",
        type=version_number,
        metavar="N",
        help="default: the version that serves by default",
    )
    parser.add_argument("--signature_name", default=DEFAULT_SIGNATURE, help="default %(default)s")
    parser.add_argument(
        "--input_json",
        type=Path,
        metavar="FILE",
        help='like the body of a REST request: {"instances": [...]} or {"inputs": {...}}',
    )
    parser.add_argument(
        "--rows", type=whole_number(1), default=1, help="rows of random data (default 1)"
    )
    parser.add_argument(
        "--seed", type=whole_number(0), default=0, help="seed of random data (default 0)"
    )
    parser.add_argument(
        "--timeout_seconds", type=positive_number, default=60, help="default %(default)s"
    )
    return parser
