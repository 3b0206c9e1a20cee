"""Names of models as parts of file names and of texts. Pure.

A model's name is any text without control characters (`fault_of_name`), as TensorFlow Serving has
it: "../../x" and "/abs" are names too. So a name never becomes a path or a line of text as it is.
"""

import hashlib
import unicodedata
from collections.abc import Iterable
from urllib.parse import quote

FILE_NAME_BYTES_MAX = 200
"""Of an encoded name: Linux takes 255 bytes, and prefixes and suffixes need some of them."""

LISTED_MAX = 5
"""Names that an error's text lists."""

_DIGEST_MARK = "%-"
"""Stands in no percent-encoded text, so a shortened name is never another name's encoding."""

# Control characters, and halves of surrogate pairs: these are bytes of an argument that are no UTF-8.
_REFUSED_CATEGORIES = frozenset({"Cc", "Cs"})


def fault_of_name(name: str) -> str:
    """Returns why no model may have this name, with the remedy; "" if one may."""
    refused = next((c for c in name if unicodedata.category(c) in _REFUSED_CATEGORIES), None)
    if refused is None:
        return ""
    return (
        f"the name holds the control character {refused!r}; logs, pages and terminals show names: "
        "leave it out"
    )


def file_name(name: str) -> str:
    """Returns the one name of a file or directory for `name`: plain ASCII, within one directory.

    All but letters, digits, "_" and "-" is percent-encoded, and so is a dot at the start: the result
    is never ".", ".." or a hidden file. Distinct names have distinct results. A name whose encoding
    is too long for a file system keeps its beginning and gets a digest.
    """
    encoded = quote(name, safe="", errors="surrogatepass").replace("~", "%7E")
    if encoded.startswith("."):
        encoded = "%2E" + encoded[1:]
    if 0 < len(encoded) <= FILE_NAME_BYTES_MAX:
        return encoded
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
    return encoded[: FILE_NAME_BYTES_MAX - len(_DIGEST_MARK) - len(digest)] + _DIGEST_MARK + digest


def listed(items: Iterable[str], separator: str = ", ") -> str:
    """Returns a few of `items` as text, and how many more there are; "none" of none.

    A server may have thousands of models, and an error's text goes to every client that misspells
    one.
    """
    shown = list(items)
    more_count = len(shown) - LISTED_MAX
    text = separator.join(shown[:LISTED_MAX]) or "none"
    return f"{text} and {more_count} more" if more_count > 0 else text


def printable(text: str) -> str:
    """Returns `text` for one line of a terminal or a log: what cannot be printed is escaped.

    Control characters could move a terminal's cursor, and marks of writing direction could swap what
    is read.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
