"""Uploads files of request logs to servers of Google's and Azure's APIs, and compares what arrives.

By hand, because the suite does without their packages: `pip install 'millpond[gs,az]' gcp-storage-emulator`,
`npm install --prefix DIRECTORY azurite`, and `python scripts/try_log_stores.py DIRECTORY`. S3 is in the
suite (tests/integration/test_object_storage.py).
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.drive.shell_server import free_port
from serving.base.clock import SystemClock, pause, seconds_since
from serving.storage.fsspec_store import open_file_system
from serving.storage.log_store import FsspecLogStore
from serving.storage.stored_objects import StoreError

# Nothing, less than a part, a part, and several.
SIZES = (0, 1, 5_000, 8 * 2**20, 20 * 2**20 + 7)

START_SECONDS = 60.0

# The account that Azurite documents.
AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@dataclass(frozen=True)
class Emulator:
    """A store's server: how it is started, and how its library finds it."""

    scheme: str
    command: Sequence[str]
    environment: Mapping[str, str]


def emulators(azurite: Path, scratch: Path) -> Sequence[Emulator]:
    """The servers of both stores, on free ports."""
    google, azure = free_port(), free_port()
    endpoint = f"http://127.0.0.1:{azure}/devstoreaccount1"
    connection = f"AccountName=devstoreaccount1;AccountKey={AZURITE_KEY};BlobEndpoint={endpoint};"
    program = azurite / "node_modules" / ".bin" / "azurite-blob"
    options = ("--location", str(scratch), "--skipApiVersionCheck", "--silent")
    return (
        Emulator(
            "gs",
            ("gcp-storage-emulator", "start", "--port", str(google), "--in-memory"),
            {
                "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{google}",
                # Without a look at the kind of the bucket, which asks Google itself.
                "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            },
        ),
        Emulator(
            "az",
            (str(program), "--blobPort", str(azure), *options),
            {"AZURE_STORAGE_CONNECTION_STRING": f"DefaultEndpointsProtocol=http;{connection}"},
        ),
    )


@contextmanager
def running(emulator: Emulator) -> Iterator[Any]:
    """Yields a file system of the started server, which has the bucket `clicks`."""
    os.environ.update(emulator.environment)
    process = subprocess.Popen(
        emulator.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield _with_bucket(emulator.scheme)
    finally:
        process.terminate()
        process.wait()


def _with_bucket(scheme: str) -> Any:
    clock = SystemClock()
    start_ns = clock.now_ns()
    while True:
        file_system = open_file_system(scheme)
        # Any error of a library's own, until the server listens.
        with suppress(Exception):
            file_system.mkdir("clicks")
            return file_system
        if seconds_since(clock, start_ns) > START_SECONDS:
            raise SystemExit(f"{scheme}: the server does not answer")
        pause(clock, 0.5)


def try_store(scheme: str, file_system: Any, scratch: Path) -> None:
    """Sends files of all sizes, each twice, and one to a bucket that is not there."""
    store = FsspecLogStore(f"{scheme}://clicks/logs")
    path = scratch / "file"
    for size in SIZES:
        for content in (os.urandom(size), os.urandom(size)):
            path.write_bytes(content)
            store.upload(path, "ctr-1.tfrecord")
            stored = file_system.cat_file("clicks/logs/ctr-1.tfrecord")
            if stored != content:
                raise SystemExit(f"{scheme}: {len(stored)} other bytes of {size}")
        print(f"{scheme}: {size} bytes, twice: the same bytes")
    try:
        FsspecLogStore(f"{scheme}://absent/logs").upload(path, "x")
    except StoreError as error:
        print(f"{scheme}: {error}")
    else:
        raise SystemExit(f"{scheme}: a bucket that is not there took a file")


def main() -> None:
    """Tries both stores."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for emulator in emulators(Path(sys.argv[1]), scratch / "azurite"):
            with running(emulator) as file_system:
                try_store(emulator.scheme, file_system, scratch)


if __name__ == "__main__":
    main()
