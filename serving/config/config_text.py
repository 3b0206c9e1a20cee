"""Reads the text of a model config file, whose base paths may have bytes that are not UTF-8."""

import re
from pathlib import Path

from serving.base.bounded_files import CONFIG_BYTES_MAX, read_bounded_utf8

_NO_TEXT = re.compile("[\udc80-\udcff]")


def read_config_text(path: Path) -> str:
    """Reads the text of a text protobuf. Raises OSError, and InvalidConfig for a file that is too
    long.

    Bytes that are not UTF-8 become escapes, like `\\351`. Within a quoted base path the escapes stand for
    the path's bytes. Anywhere else the parser refuses them.
    """
    text = read_bounded_utf8(path, CONFIG_BYTES_MAX).decode(errors="surrogateescape")
    return text if text.isascii() else _NO_TEXT.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    (byte,) = match.group().encode(errors="surrogateescape")
    return f"\\{byte:03o}"
