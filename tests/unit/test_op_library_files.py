import struct
from pathlib import Path

import pytest

from serving.base.errors import InvalidConfig
from serving.config.op_library_files import (
    is_op_library,
    op_libraries_of,
    read_dynamic_names,
    unmet_requirement,
)

FRAMEWORK = b"\0libtensorflow_framework.so.2\0"
REGISTERS_OP = b"\0_ZN10tensorflow11register_op19OpDefBuilderWrapperclEv\0"
REGISTERS_KERNEL = b"\0_ZN10tensorflow14kernel_factory17OpKernelRegistrar12InitInternal\0"
PYTHON_MODULE = b"\0PyInit_tokenizer\0"

# Positions of the parts of `shared_object` in the file; its segment is mapped a page further.
_DYNAMIC_AT, _NAMES_AT, _MAPPED_AT = 0xC0, 0x100, 0x1000


def shared_object(names: bytes) -> bytes:
    """Returns the smallest ELF file with a dynamic string table."""
    dynamic = struct.pack("<qQqQqQ", 5, _MAPPED_AT + _NAMES_AT, 10, len(names), 0, 0)
    size_bytes = _NAMES_AT + len(names)
    header = struct.pack(
        *("<4sBBB9xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0),
    )
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, _MAPPED_AT, 0, size_bytes, size_bytes, 0x1000)
    table = struct.pack(
        "<IIQQQQQQ", 2, 4, _DYNAMIC_AT, _MAPPED_AT + _DYNAMIC_AT, 0, len(dynamic), len(dynamic), 8
    )
    return (header + load + table).ljust(_DYNAMIC_AT, b"\0") + dynamic.ljust(0x40, b"\0") + names


OP_LIBRARY = shared_object(FRAMEWORK + REGISTERS_OP)


class Site:
    """A directory with installed packages, on sys.path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def install(self, package: str, files: dict[str, bytes], *requirements: str) -> None:
        records = []
        for name, content in files.items():
            file = self.path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            records.append(f"{name},,")
        information = self.path / f"{package.replace('-', '_')}-1.0.dist-info"
        information.mkdir()
        (information / "RECORD").write_text("\n".join(records))
        required = "".join(f"Requires-Dist: {requirement}\n" for requirement in requirements)
        (information / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n{required}"
        )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.syspath_prepend(str(tmp_path))
    return Site(tmp_path)


def libraries(package: str) -> tuple[str, ...]:
    return op_libraries_of(package, tensorflow_version="2.21.0")


@pytest.mark.parametrize(
    ("names", "is_one"),
    [
        (FRAMEWORK + REGISTERS_OP, True),
        (FRAMEWORK + REGISTERS_KERNEL, True),
        (FRAMEWORK + b"\0TF_RegisterKernelBuilder\0", True),
        (FRAMEWORK + b"\0TF_RegisterOpDefinition\0", True),
        (FRAMEWORK + REGISTERS_OP + PYTHON_MODULE, False),
        (FRAMEWORK, False),
        (REGISTERS_OP, False),
        (b"", False),
    ],
)
def test_is_op_library_needs_tensorflow_registration(names: bytes, is_one: bool):
    assert is_op_library(names) is is_one


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (OP_LIBRARY, FRAMEWORK + REGISTERS_OP),
        (b"", b""),
        (b"not an ELF file, and longer than the header of one would be", b""),
        (OP_LIBRARY[:50], b""),
        (OP_LIBRARY[:100], b""),
        (b"\x7fELF\x01\x01" + OP_LIBRARY[6:], b""),
    ],
)
def test_dynamic_names_need_shared_object(tmp_path: Path, content: bytes, names: bytes):
    path = tmp_path / "library.so"
    path.write_bytes(content)
    assert read_dynamic_names(path) == names


def test_package_op_libraries_exclude_other_files(site: Site):
    site.install(
        "ops",
        {
            "ops/_b.so": OP_LIBRARY,
            "ops/_a.so.2": OP_LIBRARY,
            "ops/_module.cpython-311-x86_64-linux-gnu.so": shared_object(FRAMEWORK + PYTHON_MODULE),
            "ops/libicu.so": shared_object(b"\0libc.so.6\0"),
            "ops/__init__.py": OP_LIBRARY,
            "ops/_a.so.py": OP_LIBRARY,
        },
    )
    assert libraries("ops") == (f"{site.path}/ops/_a.so.2", f"{site.path}/ops/_b.so")


def test_missing_package_is_refused():
    with pytest.raises(
        InvalidConfig, match=r"--op_package=no-such-ops: .* pip install no-such-ops"
    ):
        libraries("no-such-ops")


def test_package_without_op_libraries_is_refused(site: Site):
    site.install("plain", {"plain/libz.so": shared_object(b"\0libc.so.6\0")})
    with pytest.raises(InvalidConfig, match=r"none of its 1 shared objects .* --op_library"):
        libraries("plain")


def test_package_for_other_tensorflow_is_refused(site: Site):
    site.install("old-ops", {"ops.so": OP_LIBRARY}, "numpy", "tensorflow==2.19.0")
    with pytest.raises(
        InvalidConfig, match=r"old-ops 1.0 is built for tensorflow==2.19.0, .* 2.21.0"
    ):
        libraries("old-ops")


@pytest.mark.parametrize(
    ("requirement", "unmet"),
    [
        ("tensorflow<2.22,>=2.21.0", None),
        ("tensorflow", None),
        ("tensorflow-metadata<1.18.0", None),
        ("tensorflow==2.19.0", "tensorflow==2.19.0"),
        ('tensorflow<2.17.0,>=2.16.0; extra == "tensorflow"', "tensorflow<2.17.0,>=2.16.0"),
        ("tensorflow-cpu (<2.16.0,>=2.13.0)", "tensorflow-cpu<2.16.0,>=2.13.0"),
        ("tensorflow ???", None),
    ],
)
def test_unmet_requirement_is_failing_tensorflow_one(requirement: str, unmet: str | None):
    assert unmet_requirement(["numpy<1", requirement], "2.21.0") == unmet
