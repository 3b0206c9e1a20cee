"""Finds the TensorFlow op libraries among the files of an installed package without importing it."""

import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import BinaryIO

from serving.base.errors import InvalidConfig
from serving.base.tensorflow_package import NAMES, installed_version

SHARED_OBJECT = re.compile(r"\.so(\.\d+)*$")

# The functions that a library calls to register its ops and kernels, in C++ and in the C API.
REGISTRATION_NAMES = (
    b"OpDefBuilderWrapper",
    b"OpKernelRegistrar",
    b"TF_RegisterOpDefinition",
    b"TF_RegisterKernelBuilder",
)
TENSORFLOW_LIBRARY = b"libtensorflow_framework.so"
PYTHON_MODULE = b"\0PyInit_"

_ELF_64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"
_PROGRAM_HEADERS_AT = 32  # e_phoff of the file's header; then e_phentsize and e_phnum
_PROGRAM_HEADER_SIZES_AT = 54
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_STRTAB, _DT_STRSZ = 5, 10
_TABLE_BYTES_MAX = 2**26
"""The most that is read of a table, whose length the file itself gives. TensorFlow's own has 20 MB."""


@dataclass(frozen=True)
class _Segment:
    """A segment of the file with its address in memory."""

    kind: int
    offset: int
    address: int
    size_bytes: int


def is_op_library(dynamic_names: bytes) -> bool:
    """True if a shared object with these dynamic names registers ops or kernels.

    Modules that Python imports do not count: they need an interpreter, and what they register belongs to
    the package that imports them.
    """
    return (
        TENSORFLOW_LIBRARY in dynamic_names
        and PYTHON_MODULE not in dynamic_names
        and any(name in dynamic_names for name in REGISTRATION_NAMES)
    )


def read_dynamic_names(path: Path) -> bytes:
    """Reads the dynamic string table of a 64-bit shared object; b"" for any other file.

    Raises OSError.
    """
    with path.open("rb") as file:
        try:
            return _dynamic_names(file)
        except struct.error:  # cut short
            return b""


def installed_op_libraries(package: str) -> tuple[str, ...]:
    """The op libraries of a package for the TensorFlow that runs. Raises InvalidConfig."""
    return op_libraries_of(package, tensorflow_version=installed_version())


def op_libraries_of(package: str, *, tensorflow_version: str | None) -> tuple[str, ...]:
    """The op libraries that pip installed with `package`, in the order of their paths.

    Raises InvalidConfig if the package is not installed, is built for another TensorFlow or has no op
    libraries. With None no TensorFlow is installed, which the start refuses by itself.
    """
    try:
        installed = distribution(package)
    except (PackageNotFoundError, ValueError):
        raise InvalidConfig(
            f"--op_package={package}: it is not installed here; pip install {package}"
        ) from None
    if tensorflow_version is not None:
        _check_tensorflow(package, installed, tensorflow_version)
    candidates = sorted(_shared_objects(installed))
    libraries = tuple(str(path) for path in candidates if is_op_library(read_dynamic_names(path)))
    if not libraries:
        raise InvalidConfig(
            f"--op_package={package}: none of its {len(candidates)} shared objects is a library of "
            "TensorFlow ops; give the path of one with --op_library"
        )
    return libraries


def unmet_requirement(requirements: Iterable[str], tensorflow_version: str) -> str | None:
    """The first TensorFlow requirement that this version does not meet, or None.

    Extras count as well: packages that do not install TensorFlow themselves name there the version
    that they are built for.
    """
    # Imported here because only --op_package needs it.
    from packaging.requirements import InvalidRequirement, Requirement

    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.name not in NAMES:
            continue
        if not requirement.specifier.contains(tensorflow_version, prereleases=True):
            return f"{requirement.name}{requirement.specifier}"
    return None


def _check_tensorflow(package: str, installed: Distribution, tensorflow_version: str) -> None:
    unmet = unmet_requirement(installed.requires or (), tensorflow_version)
    if unmet is not None:
        raise InvalidConfig(
            f"--op_package={package}: {package} {installed.version} is built for {unmet}, and this "
            f"is {tensorflow_version}; install the release of {package} that is built for it"
        )


def _shared_objects(installed: Distribution) -> Sequence[Path]:
    names = [file for file in installed.files or () if SHARED_OBJECT.search(file.name)]
    paths = [Path(str(installed.locate_file(file))) for file in names]
    return [path for path in paths if path.is_file()]


def _dynamic_names(file: BinaryIO) -> bytes:
    if file.read(len(_ELF_64_LITTLE_ENDIAN)) != _ELF_64_LITTLE_ENDIAN:
        return b""
    segments = _segments(file)
    entries = _dynamic_entries(file, segments)
    offset = _file_offset(segments, entries.get(_DT_STRTAB, -1))
    if offset is None:
        return b""
    file.seek(offset)
    return file.read(min(entries.get(_DT_STRSZ, 0), _TABLE_BYTES_MAX))


def _segments(file: BinaryIO) -> list[_Segment]:
    (headers_at,) = _unpack(file, _PROGRAM_HEADERS_AT, "<Q")
    header_bytes, header_count = _unpack(file, _PROGRAM_HEADER_SIZES_AT, "<HH")
    segments = []
    for number in range(header_count):
        kind, _, offset, address, _, size_bytes = _unpack(
            file, headers_at + number * header_bytes, "<IIQQQQ"
        )
        segments.append(_Segment(kind, offset, address, size_bytes))
    return segments


def _dynamic_entries(file: BinaryIO, segments: Sequence[_Segment]) -> dict[int, int]:
    for segment in segments:
        if segment.kind == _PT_DYNAMIC:
            file.seek(segment.offset)
            table = file.read(min(segment.size_bytes, _TABLE_BYTES_MAX))
            return dict(struct.iter_unpack("<qQ", table[: len(table) // 16 * 16]))
    return {}


def _file_offset(segments: Sequence[_Segment], address: int) -> int | None:
    for segment in segments:
        start = segment.address
        if segment.kind == _PT_LOAD and start <= address < start + segment.size_bytes:
            return segment.offset + address - start
    return None


def _unpack(file: BinaryIO, offset: int, layout: str) -> tuple[int, ...]:
    file.seek(offset)
    return struct.unpack(layout, file.read(struct.calcsize(layout)))
