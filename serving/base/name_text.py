"""Names of models as parts of file names and of texts. Pure.

As in TensorFlow Serving, a model's name is any text, but without control characters
(`fault_of_name`): "../../x" and "/abs" are names too. So a name must be encoded before it becomes a
part of a path or of a line of text.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from urllib.parse import quote

FILE_NAME_BYTES_MAX = 200
"""The most bytes of an encoded name. Linux allows 255, and prefixes and suffixes need some of them."""

LISTED_MAX = 5
"""The most names that an error's text lists."""

_DIGEST_MARK = "%-"
"""A mark that percent-encoded text never contains, so that a shortened name is never another name's
encoding."""

# Control characters, and halves of surrogate pairs, which stand for bytes of an argument that are not
# UTF-8.
_REFUSED_CATEGORIES = frozenset({"Cc", "Cs"})


def fault_of_name(name: str) -> str:
    """The reason why the name is not allowed for a model, with the remedy; "" if it is allowed."""
    refused = next((c for c in name if unicodedata.category(c) in _REFUSED_CATEGORIES), None)
    if refused is None:
        return ""
    return (
        f"the name contains the control character {refused!r}: leave it out, because names are shown "
        "in logs, on pages and in terminals"
    )


def file_name(name: str) -> str:
    """Makes the file or directory name for `name`: plain ASCII, without a path separator.

    All characters but letters, digits, "_", "-" and "." are percent-encoded, and so is a dot at the
    start. So the result is never ".", ".." or a hidden file. Distinct names have distinct results. If
    the encoding is too long for a file system, it is cut off and gets a digest.
    """
    encoded = quote(name, safe="", errors="surrogatepass").replace("~", "%7E")
    if encoded.startswith("."):
        encoded = "%2E" + encoded[1:]
    if 0 < len(encoded) <= FILE_NAME_BYTES_MAX:
        return encoded
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
    return encoded[: FILE_NAME_BYTES_MAX - len(_DIGEST_MARK) - len(digest)] + _DIGEST_MARK + digest


def natural_order(name: str) -> tuple[tuple[int, str], ...]:
    """The key by which people sort names: "s2" comes before "s10"."""
    parts = re.split("([0-9]+)", name)
    # A number is compared by its length first, because names may have more digits than Python takes for a
    # number.
    numbers = (part.lstrip("0") if index % 2 else part for index, part in enumerate(parts))
    return tuple((len(part) if index % 2 else 0, part) for index, part in enumerate(numbers))


def listed(items: Iterable[str], separator: str = ", ") -> str:
    """The first LISTED_MAX `items` as text, and the number of further items; "none" if empty.

    The limit is there because a server may have thousands of models, and an error's text goes to every
    client that misspells a name.
    """
    shown = list(items)
    more_count = len(shown) - LISTED_MAX
    text = separator.join(shown[:LISTED_MAX]) or "none"
    return f"{text} and {more_count} more" if more_count > 0 else text


def encodable(text: str) -> str:
    """`text` without halves of surrogate pairs, which no log, page or reply can carry.

    Python holds a byte of a path that is not UTF-8 as such a half. It is shown as `\\xe9`, so two
    paths may look alike: use the result for people only.
    """
    if text.isascii():
        return text
    try:
        return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    except UnicodeEncodeError:  # A half that stands for no byte.
        return text.encode(errors="backslashreplace").decode()


def printable(text: str) -> str:
    """`text` for one line of a terminal or a log, with unprintable characters escaped.

    Control characters could move a terminal's cursor, and marks of writing direction could reorder the
    text on the screen.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
