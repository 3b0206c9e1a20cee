"""The mirrors of several models: their directories, and their ends."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from serving.base.clock import SystemClock
from serving.loading.background_work import BackgroundWork
from serving.source.notes import Note
from serving.storage.fsspec_store import reading_threads
from serving.storage.mirror import MirrorSettings
from serving.storage.mirrors import Mirrors, mirror_name
from tests.unit.fakes.object_stores import FakeStore, FakeVersions
from tests.unit.fakes.threads import FakeBackground

JOIN_SECONDS = 20


def check(directory: str) -> Sequence[str]:
    del directory
    return ()


def mirrors_of(directory: Path, store: FakeStore, background: BackgroundWork) -> Mirrors:
    return Mirrors(
        directory,
        MirrorSettings(period_seconds=1, budget_bytes=10**9),
        check=check,
        background=background,
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
    store, background = FakeStore(), FakeBackground()
    versions = FakeVersions(lambda found: found[-1:])
    mirrors = mirrors_of(tmp_path, store, background)
    mirrors.open("m", "s3://b/m", versions)
    mirrors.close("m")
    mirrors.stop()
    assert mirrors.join(JOIN_SECONDS)
    assert background.entered == ["mirror-m"]
    directory = mirrors.directory("m", "s3://b/m")
    assert directory == tmp_path / mirror_name("m", "s3://b/m")


def test_each_look_is_watched(tmp_path: Path):
    background = FakeBackground()
    mirrors = mirrors_of(tmp_path, FakeStore(), background)
    mirrors.open("m", "s3://b/m", FakeVersions(lambda found: found))
    assert background.has_watched.wait(JOIN_SECONDS)
    mirrors.stop()
    assert mirrors.join(JOIN_SECONDS)
    assert {(thread, helpers) for thread, helpers in background.watched_threads} == {
        ("mirror-m", reading_threads)
    }


def test_opened_model_says_that_nothing_was_read(tmp_path: Path):
    versions = FakeVersions(lambda found: found)
    mirrors = mirrors_of(tmp_path, FakeStore(), FakeBackground())
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
