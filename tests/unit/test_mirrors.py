"""The mirrors of several models: their directories, and their ends."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from serving.base.clock import SystemClock
from serving.source.notes import Note
from serving.storage.mirror import MirrorSettings
from serving.storage.mirrors import Mirrors, mirror_name
from tests.unit.fakes.object_stores import FakeStore, FakeVersions

JOIN_SECONDS = 20


def check(directory: str) -> Sequence[str]:
    del directory
    return ()


def mirrors_of(directory: Path, store: FakeStore, at_start: Callable[[], object]) -> Mirrors:
    return Mirrors(
        directory,
        MirrorSettings(period_seconds=1, budget_bytes=10**9),
        check=check,
        at_start=at_start,
        clock=SystemClock(),
        make_store=lambda url: store,
    )


def test_directory_is_of_model_and_url():
    names = {
        mirror_name(model, url)
        for model in ("a", "b")
        for url in ("s3://b/m", "s3://b/n", "gs://b/m")
    }
    assert len(names) == 6
    assert mirror_name("a", "s3://b/m/") == mirror_name("a", "s3://b/m")
    assert "/" not in mirror_name("../x" * 100, "s3://b/m")
    assert len(mirror_name("x" * 1_000, "s3://b/m")) < 130


def test_mirror_looks_until_it_is_closed(tmp_path: Path):
    store, started = FakeStore(), []
    versions = FakeVersions(lambda found: found[-1:])
    mirrors = mirrors_of(tmp_path, store, lambda: started.append(True))
    mirrors.open("m", "s3://b/m", versions)
    mirrors.close("m")
    mirrors.stop()
    assert mirrors.join(JOIN_SECONDS)
    assert started == [True]
    directory = mirrors.directory("m", "s3://b/m")
    assert directory == tmp_path / mirror_name("m", "s3://b/m")


def test_each_look_is_watched(tmp_path: Path):
    store, seen = FakeStore(), list[str]()

    @contextmanager
    def watched() -> Iterator[None]:
        seen.append(threading.current_thread().name)
        yield
        looked.set()

    looked = threading.Event()
    mirrors = Mirrors(
        tmp_path,
        MirrorSettings(period_seconds=1, budget_bytes=10**9),
        check=check,
        at_start=lambda: None,
        around_look=watched,
        clock=SystemClock(),
        make_store=lambda url: store,
    )
    mirrors.open("m", "s3://b/m", FakeVersions(lambda found: found))
    assert looked.wait(JOIN_SECONDS)
    mirrors.stop()
    assert mirrors.join(JOIN_SECONDS)
    assert set(seen) == {"mirror-m"}


def test_opened_model_says_that_nothing_was_read(tmp_path: Path):
    versions = FakeVersions(lambda found: found)
    mirrors = mirrors_of(tmp_path, FakeStore(), lambda: None)
    mirrors.open("m", "s3://b/m", versions)
    mirrors.stop()
    assert mirrors.join(JOIN_SECONDS)
    assert versions.all_notes[0] == {Note.of("store_not_read", "info")}


def test_server_without_urls_imports_no_mirror():
    code = (
        "import sys, serving.server.server; "
        "print([name for name in sys.modules if 'fsspec' in name or name in "
        "('serving.storage.mirrors', 'serving.storage.mirror', 's3fs', 'botocore')])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
