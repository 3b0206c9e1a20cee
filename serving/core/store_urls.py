"""URLs of object storage: their schemes, and the check of a URL before anything starts. Pure,
except for the look if a package is installed.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from serving.base.errors import InvalidConfig


@dataclass(frozen=True)
class Backend:
    """The package that reads the URLs of one scheme. `extra` is Millpond's extra that installs it."""

    extra: str
    module: str


BACKENDS: Mapping[str, Backend] = {
    "s3": Backend("s3", "s3fs"),
    "gs": Backend("gs", "gcsfs"),
    "az": Backend("az", "adlfs"),
    "hf": Backend("hf", "huggingface_hub"),
}
"""The backend of each scheme."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


def is_store_url(base_path: str) -> bool:
    """True if the base path has a scheme, known or not."""
    return "://" in base_path


def check_store_url(
    url: str,
    where: str,
    is_installed: Callable[[str], bool] | None = None,
    *,
    what: str = "base_path",
) -> None:
    """Raises InvalidConfig, whose message begins with `where` and `what`, if the URL cannot be used.

    A URL may hold a password. The message therefore holds the URL only if it is sure to have none.
    """
    found = _URL.fullmatch(url)
    scheme = found[1] if found else ""
    backend = BACKENDS.get(scheme)
    if found is None or backend is None:
        raise InvalidConfig(
            f"{where}{what} with the scheme {scheme!r} is unknown; use "
            f"{', '.join(f'{name}://' for name in BACKENDS)} or a local directory"
        )
    if "@" in found[2].split("/")[0] or re.search(r"[?#]", found[2]):
        raise InvalidConfig(
            f"{where}{what} is a {scheme}:// URL with a user, a query or a fragment; give "
            "credentials by the environment or the configuration files of the storage, not by the URL"
        )
    if not re.fullmatch(r"[^/\s]+(/[^/\s][^\s]*)?/?", found[2]) or ".." in found[2].split("/"):
        raise InvalidConfig(f"{where}{what} {url!r} must be like {scheme}://bucket/path/of/model")
    if not (is_installed or _is_installed)(backend.module):
        raise InvalidConfig(
            f"{where}{what} {url!r} needs the package {backend.module}: "
            f"pip install 'millpond[{backend.extra}]'"
        )


def _is_installed(module: str) -> bool:
    return find_spec(module) is not None
