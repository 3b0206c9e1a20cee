"""A model's request log as its configuration has it: which requests, to which files. Values only."""

import math
import os
from dataclasses import dataclass

from serving.base.errors import InvalidConfig
from serving.base.name_text import fault_of_name
from serving.core.store_urls import BACKENDS, check_store_url, is_store_url

TFRECORD = "tfrecord"
PARQUET = "parquet"
FILE_TYPES = (TFRECORD, PARQUET)
"""The types of files. The first one is that of a configuration that names none."""

WRITABLE_SCHEMES = ("s3", "gs", "az")
"""The schemes of URLs to which files are written."""

FILE_STEM_BYTES_MAX = 150
"""The longest last part of a prefix. Linux allows 255 bytes for a name, and a time, a number and the
marks of an incomplete file follow it."""


@dataclass(frozen=True, kw_only=True)
class RequestLogging:
    """The log of one model: the share of its requests, above 0 and up to 1, and its files.

    `filename_prefix` is an absolute path whose last part begins the names of the files, or such a URL of
    object storage.
    """

    sampling_rate: float
    filename_prefix: str
    file_type: str = TFRECORD

    @property
    def is_uploaded(self) -> bool:
        """True if the files go to object storage."""
        return is_store_url(self.filename_prefix)

    def __str__(self) -> str:
        return f"{self.sampling_rate:g} to {self.filename_prefix} ({self.file_type})"


def make_request_logging(
    sampling_rate: float, filename_prefix: str, file_type: str, where: str
) -> RequestLogging | None:
    """Makes the log of a `logging_config`; None if it takes no requests, which is a rate of 0.

    Raises InvalidConfig, whose message begins with `where`, for a rate that is not from 0 to 1, an unknown
    type, and a prefix that is neither an absolute path of a file nor a URL that files can be written to.
    """
    if not 0 <= sampling_rate <= 1 or math.isnan(sampling_rate):
        raise InvalidConfig(
            f"{where}: sampling_rate {sampling_rate:g} is not a share of the requests; give 0 (off) to 1"
        )
    if (file_type or TFRECORD) not in FILE_TYPES:
        raise InvalidConfig(
            f"{where}: log_collector_config type {file_type!r} is unknown; "
            f"known: {', '.join(FILE_TYPES)}"
        )
    if sampling_rate == 0:
        return None
    _check_prefix(filename_prefix, where)
    return RequestLogging(
        sampling_rate=sampling_rate,
        filename_prefix=filename_prefix,
        file_type=file_type or TFRECORD,
    )


def _check_prefix(prefix: str, where: str) -> None:
    if is_store_url(prefix):
        _check_url(prefix, f"{where}: log_collector_config ")
    where = f"{where}: log_collector_config filename_prefix {prefix!r}"
    if fault := fault_of_name(prefix):
        raise InvalidConfig(f"{where}: {fault}")
    stem = os.path.basename(prefix)
    if not (os.path.isabs(prefix) or is_store_url(prefix)) or stem in ("", ".", ".."):
        raise InvalidConfig(
            f"{where} is not the absolute path of a file; give one like /var/log/millpond/ctr"
        )
    if len(os.fsencode(stem)) > FILE_STEM_BYTES_MAX:
        raise InvalidConfig(
            f"{where}: its last part has more than {FILE_STEM_BYTES_MAX} bytes; shorten it"
        )


def _check_url(url: str, where: str) -> None:
    """Raises InvalidConfig unless files can be written below the URL. The message has no credentials."""
    scheme, _, path = url.partition("://")
    if scheme in BACKENDS.keys() - set(WRITABLE_SCHEMES):
        raise InvalidConfig(
            f"{where}filename_prefix with the scheme {scheme!r}: a repository takes a commit for each file; use "
            f"{', '.join(f'{name}://' for name in WRITABLE_SCHEMES)} or a directory"
        )
    check_store_url(url, where, what="filename_prefix")
    if not path.partition("/")[2] or path.endswith("/"):
        raise InvalidConfig(
            f"{where}filename_prefix {url!r} must end in the first part of the files' names, like "
            f"{scheme}://bucket/logs/ctr"
        )
