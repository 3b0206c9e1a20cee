"""Reads how requests are batched: TensorFlow Serving's BatchingParameters, as text.

It comes from the file of --batching_parameters_file, or from a version's directory.
"""

from pathlib import Path
from typing import Any

from google.protobuf import text_format

from serving.base.bounded_files import SETTINGS_BYTES_MAX, read_bounded_text
from serving.base.compiled_protos import message_class
from serving.base.errors import InvalidConfig
from serving.core.model_settings import (
    BatchingChoice,
    BatchingSettings,
    check_batch_size,
    check_batch_sizes,
)

VERSION_FILE = "batching_params.pbtxt"
"""The file of a version's own parameters, in its directory, as with TensorFlow Serving."""

# TensorFlow Serving's values of fields that are left out.
_MAX_BATCH_SIZE = 1_000
_MAX_ENQUEUED_BATCHES = 10


def read_batching_parameters_file(path: Path) -> BatchingSettings:
    """Reads the file of --batching_parameters_file.

    Raises InvalidConfig, with the file, the field, the value and the remedy, if the file cannot be
    read or parsed, or if its values are invalid or contradict each other.
    """
    try:
        text = read_bounded_text(path, SETTINGS_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path}: cannot be read: {error}") from error
    return parse_batching_parameters(text, str(path))


def read_batching_parameters_of_version(directory: Path) -> BatchingSettings | None:
    """Reads the file in a version's directory; None if there is no file.

    Raises OSError if the disk fails; otherwise like `read_batching_parameters_file`.
    """
    path = directory / VERSION_FILE
    try:
        text = read_bounded_text(path, SETTINGS_BYTES_MAX)
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"{path}: cannot be read: {error}") from error
    return parse_batching_parameters(text, str(path))


def parse_batching_parameters(text: str, where: str) -> BatchingSettings:
    """Parses a text from `where`; otherwise like `read_batching_parameters_file`.

    thread_pool_name has no effect, because batches run on request threads. batch_timeout_micros has no
    effect either, because no request waits for others to batch with.
    """
    message = message_class("tensorflow.serving.BatchingParameters")()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        known = ", ".join(field.name for field in message.DESCRIPTOR.fields)
        raise InvalidConfig(
            f"{where}: not a text protobuf of BatchingParameters: {error}; its fields are {known}"
        ) from error
    try:
        return _settings(message)
    except InvalidConfig as error:
        raise InvalidConfig(f"{where}: {error.message}") from error


def _settings(message: Any) -> BatchingSettings:
    for name in ("num_batch_threads", "max_enqueued_batches"):
        if _value(message, name, 1) < 1:
            raise InvalidConfig(
                f"{name} {_value(message, name, 1)} is not a number of batches; give 1 or more, or "
                "leave it out"
            )
    timeout_micros = _value(message, "batch_timeout_micros", 0)
    if timeout_micros < 0:
        raise InvalidConfig(f"batch_timeout_micros {timeout_micros} is not a time; give 0 or more")
    return BatchingSettings(
        enabled=BatchingChoice.ON,
        max_batch_size=_run_size(message),
        splits_large_requests=message.enable_large_batch_splitting.value,
        allowed_batch_sizes=tuple(message.allowed_batch_sizes),
        pads_variable_length_inputs=message.pad_variable_length_inputs,
        max_enqueued_batches=_value(message, "max_enqueued_batches", _MAX_ENQUEUED_BATCHES),
        num_batch_threads=_value(message, "num_batch_threads", 0),
    )


def _run_size(message: Any) -> int:
    """The most rows of a run. TensorFlow Serving's max_batch_size also bounds a request."""
    batch_size = _value(message, "max_batch_size", _MAX_BATCH_SIZE)
    check_batch_size(batch_size)
    if not message.HasField("max_execution_batch_size"):
        return batch_size
    run_size = _value(message, "max_execution_batch_size", 0)
    if not message.enable_large_batch_splitting.value:
        raise InvalidConfig(
            f"max_execution_batch_size {run_size} has no effect: large requests are not split; add "
            "enable_large_batch_splitting { value: true }, or set max_batch_size instead"
        )
    if not 1 <= run_size <= batch_size:
        raise InvalidConfig(
            f"max_execution_batch_size {run_size} is not a part of max_batch_size {batch_size}; "
            f"give 1 to {batch_size}"
        )
    check_batch_sizes(message.allowed_batch_sizes, "max_execution_batch_size", run_size)
    return run_size


def _value(message: Any, name: str, default: int) -> int:
    """The number of a field, or `default` if it is left out."""
    return int(getattr(message, name).value) if message.HasField(name) else default
