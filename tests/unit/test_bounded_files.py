"""Every file that others may write has a bound on what is read of it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.base.bounded_files import read_bounded_bytes, read_bounded_text
from serving.base.errors import DataLoss, InvalidConfig
from serving.config.batching_parameters_file import (
    VERSION_FILE,
    read_batching_parameters_file,
    read_batching_parameters_of_version,
)
from serving.config.model_config_file import read_model_config_file
from serving.config.model_settings_file import read_model_settings_file
from serving.config.monitoring_config_file import read_monitoring_config_file
from serving.config.tls_config import read_tls_config
from serving.loading.topologies import topology_description
from tests.unit.pem import config_text, make_identity
from warmup.records import RECORD_BYTES_MAX, encode_record, read_records

ROOT = Path(__file__).parents[2]

OWN_FILES = {
    "serving/base/bounded_files.py",
    "serving/base/compiled_protos.py",  # of the package
    "serving/base/bill_of_materials.py",  # of the package
    "serving/monitoring/page_routes.py",  # of the package
    "serving/manager/blocked_version_rows.py",  # of the server's own state directory
    "serving/reload/grants.py",  # of the server's own state directory
    "serving/storage/version_copy.py",  # the journal of its own copy
    "serving/loading/initial_loads.py",  # of /proc
    "serving/loading/library_threads.py",  # of /proc
    "serving/loading/starvation_watch.py",  # of /proc
    "serving/loading/memory_fit.py",  # of /proc and the control group
    "serving/source/mounts.py",  # of /proc
    "serving/base/numa_nodes.py",  # of /sys
    "serving/server/launcher.py",  # of /proc
}
"""The modules that read a file whole without a bound, because only the server or the kernel writes it."""

NOT_OF_SERVERS = (
    "serving/client/",
    "serving/commands/",
    "millpond/delta/",  # a trainer reads its own checkpoints
    "millpond/checkpoint_index.py",  # the same
)

READS_WHOLE = re.compile(r"\.read_(text|bytes)\(")


def sparse(path: Path, size_bytes: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size_bytes)
    return path


def header_of_record(length_bytes: int) -> bytes:
    """The length of a record with its checksum: both are the data and the footer of another record."""
    length = length_bytes.to_bytes(8, "little")
    return encode_record(length)[12:]


def test_file_of_its_bound_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a\r\nb\rc")
    assert read_bounded_bytes(path, 6) == b"a\r\nb\rc"
    assert read_bounded_text(path, 6) == path.read_text(encoding="utf-8") == "a\nb\nc"


def test_longer_file_is_refused_with_its_name(tmp_path: Path) -> None:
    path = sparse(tmp_path / "file", 2**40)
    with pytest.raises(InvalidConfig, match=f"{path}: has more than 1000 bytes"):
        read_bounded_bytes(path, 1_000)


@pytest.mark.parametrize(
    "read",
    [
        read_batching_parameters_file,
        lambda path: read_batching_parameters_of_version(path.parent),
        read_model_config_file,
        lambda path: read_model_settings_file(path, ()),
        read_monitoring_config_file,
        read_tls_config,
    ],
)
def test_endless_config_file_is_refused(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = sparse(tmp_path / VERSION_FILE, 2**40)
    with pytest.raises(InvalidConfig, match="has more than"):
        read(path)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (read_batching_parameters_file, "max_batch_size { value: 8 }"),
        (
            lambda path: read_batching_parameters_of_version(path.parent),
            "max_batch_size { value: 8 }",
        ),
        (
            read_model_config_file,
            'model_config_list { config { name: "m" base_path: "/m" model_platform: "tensorflow" } }',
        ),
        (
            lambda path: read_model_settings_file(path, ("m",)),
            "[default]\nkeep_previous_seconds = 7\n",
        ),
        (read_monitoring_config_file, 'prometheus_config { enable: true path: "/figures" }'),
        (lambda path: topology_description(str(path)), "platform_name: 'CUDA'"),
    ],
)
def test_byte_order_mark_changes_no_settings(
    tmp_path: Path, read: Callable[[Path], object], text: str
) -> None:
    expect_same_with_mark(tmp_path / VERSION_FILE, read, text)


def test_byte_order_mark_changes_no_certificate(tmp_path: Path) -> None:
    identity = make_identity(tmp_path, "server")
    text = config_text(identity.key, identity.certificate)
    expect_same_with_mark(tmp_path / "tls.config", read_tls_config, text)


def expect_same_with_mark(path: Path, read: Callable[[Path], object], text: str) -> None:
    path.write_text(text, encoding="utf-8")
    without_mark = read(path)
    path.write_text(text, encoding="utf-8-sig")
    assert read(path) == without_mark


def test_endless_warmup_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(header_of_record(RECORD_BYTES_MAX + 1))
    with path.open("r+b") as file:
        file.truncate(RECORD_BYTES_MAX + 100)
    with pytest.raises(DataLoss, match="at most"):
        list(read_records(path))


def test_modules_read_strangers_files_with_bound() -> None:
    unbounded = {
        str(path.relative_to(ROOT))
        for package in ("serving", "warmup", "millpond")
        for path in (ROOT / package).rglob("*.py")
        if READS_WHOLE.search(path.read_text(encoding="utf-8"))
    }
    at_the_server = {name for name in unbounded if not name.startswith(NOT_OF_SERVERS)}
    assert at_the_server - OWN_FILES == set()
