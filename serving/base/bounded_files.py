"""Reads files whole, up to a bound, because a huge file must not take the server's memory.

A sparse file of 1 GB takes no space on a disk, so whoever may write a version can make one.
"""

import codecs
from pathlib import Path

from serving.base.errors import InvalidConfig

CONFIG_BYTES_MAX = 2**26
"""The most that is read of a file that lists models: as much as a client may send to reload."""

SETTINGS_BYTES_MAX = 2**20
"""The most that is read of any other file of settings. The longest files that people write have some KB."""


def read_bounded_bytes(path: Path, bytes_max: int) -> bytes:
    """Reads the file's content, at most `bytes_max` of it.

    Raises InvalidConfig if it is longer, and OSError.
    """
    with path.open("rb") as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise InvalidConfig(
            f"{path}: has more than {bytes_max} bytes, the most that is read of such a file; make "
            "it shorter"
        )
    return content


def read_bounded_utf8(path: Path, bytes_max: int) -> bytes:
    """Does the same for a text, without the byte order mark that some editors put before UTF-8.

    No parser of settings takes the mark for white space, and people do not see it.
    """
    return read_bounded_bytes(path, bytes_max).removeprefix(codecs.BOM_UTF8)


def read_bounded_text(path: Path, bytes_max: int) -> str:
    """Decodes that, with the line ends of `Path.read_text`. Raises UnicodeDecodeError too."""
    text = read_bounded_utf8(path, bytes_max).decode("utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")
