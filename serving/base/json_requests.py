"""Parses the requests of rare calls whose body is a JSON object."""

import json
from typing import Any

from serving.base.errors import InvalidArgument


def parse_object(text: bytes) -> dict[str, Any]:
    """Parses a JSON object.

    Raises InvalidArgument if `text` is not valid JSON, is nested too deeply for Python's parser, or
    is not an object.
    """
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the request is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise InvalidArgument(
            f"the request must be a JSON object, but it is {type(parsed).__name__}"
        )
    return parsed
