"""Requests whose body is a JSON object, of the rare calls: what is no such thing is the caller's fault."""

import json
from typing import Any

from serving.base.errors import InvalidArgument


def parse_object(text: bytes) -> dict[str, Any]:
    """Raises InvalidArgument: no JSON, deeper than Python's parser goes, or no object."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the request is no JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise InvalidArgument(f"the request is no JSON object but {type(parsed).__name__}")
    return parsed
