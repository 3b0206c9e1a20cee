"""A mirror between a store in memory and a directory: what appears there, and when."""

import errno
from collections.abc import Callable
from hashlib import md5
from pathlib import Path

import pytest

from serving.base.clock import NS_PER_SECOND
from serving.storage.mirror_plan import RELIST_NS
from serving.storage.stored_objects import StoreError
from serving.storage.version_copy import partial_directory, removed_name
from tests.unit.worlds.mirror import PERIOD_SECONDS, MirrorWorld

MakeWorld = Callable[..., MirrorWorld]


@pytest.fixture
def world(tmp_path: Path) -> MirrorWorld:
    return MirrorWorld(tmp_path)


def test_uploaded_version_appears_whole(world: MirrorWorld):
    world.store.upload_version(7)
    assert world.look() == 2
    assert world.events() == {"version_fetching"}
    world.look()
    assert world.local() == {7: world.stored(7)}
    assert world.versions.change_count == 1
    world.look_until_idle()
    assert world.events() == set()


def test_idle_look_is_one_request(world: MirrorWorld):
    world.store.upload_version(7)
    world.look_until_idle()
    before = world.store.request_count
    assert world.look() == PERIOD_SECONDS
    assert world.store.request_count == before + 1


def test_half_upload_stays_out_until_it_is_whole(world: MirrorWorld):
    world.store.upload_version(6)
    world.look_until_idle()
    world.store.upload("7", "saved_model.pb", b"g")
    for _ in range(10):
        world.look()
    assert set(world.local()) == {6}
    assert world.events() == {"version_incomplete"}
    world.store.upload("7", "variables/variables.data", b"v")
    world.look(), world.look()
    assert world.local()[7] == world.stored(7)


def test_half_upload_does_not_stop_an_older_version(world: MirrorWorld):
    world.store.upload_version(5)
    world.store.upload_version(6)
    world.store.upload("7", "saved_model.pb", b"g")
    world.store.upload("8", "variables/variables.data", b"v")
    for _ in range(10):
        world.look()
    assert set(world.local()) == {6}


def test_version_that_lacks_an_asset_waits_for_it(world: MirrorWorld):
    world.missing_assets = ["vocab"]
    world.store.upload_version(7)
    world.look(), world.look()
    assert world.local() == {}
    world.clock.advance(100)
    world.look()
    assert set(world.local()) == {7}


def test_removed_version_is_removed_locally(world: MirrorWorld):
    world.store.upload_version(6)
    world.look_until_idle()
    world.store.upload_version(7)
    world.look_until_idle()
    world.look_until_idle()
    assert set(world.local()) == {6, 7}
    world.store.remove("7")
    world.look()
    assert set(world.local()) == {6, 7}
    world.look()
    assert set(world.local()) == {6}


@pytest.mark.parametrize("keeps_last", [True, False])
def test_emptied_store_is_as_an_emptied_directory(tmp_path: Path, keeps_last: bool):
    world = MirrorWorld(tmp_path, keeps_last=keeps_last)
    world.store.upload_version(7)
    world.look_until_idle()
    world.store.remove("7")
    world.look(), world.look()
    assert set(world.local()) == ({7} if keeps_last else set())


def test_half_upload_does_not_remove_the_last_version(world: MirrorWorld):
    world.store.upload_version(7)
    world.look_until_idle()
    world.store.remove("7")
    world.store.upload("8", "saved_model.pb", b"g")
    for _ in range(10):
        world.look()
    assert set(world.local()) == {7}
    world.store.upload("8", "variables/variables.data", b"v")
    for _ in range(4):
        world.look()
    assert world.local() == {8: world.stored(8)}


def test_version_removed_while_copied_leaves_nothing(world: MirrorWorld):
    world.store.upload_version(6)
    world.look_until_idle()
    world.store.upload_version(7, size=1_000)
    world.store.read_bytes_max = 100

    def remove(name: str, path: str) -> None:
        if name == "7" and path.startswith("variables"):
            world.store.remove("7")

    world.store.before_read = remove
    for _ in range(5):
        world.look()
    assert set(world.local()) == {6}
    assert not partial_directory(world.base, 7).exists()


def test_version_replaced_while_copied_is_the_new_one(world: MirrorWorld):
    world.store.upload_version(7, size=100)
    is_first = True

    def replace(name: str, path: str) -> None:
        nonlocal is_first
        if path.startswith("variables") and is_first:
            is_first = False
            world.store.upload_version(7, size=100)

    world.store.before_read = replace
    world.look_until_idle()
    assert world.local() == {7: world.stored(7)}


def test_store_that_is_down_removes_nothing(world: MirrorWorld):
    world.store.upload_version(7)
    world.look_until_idle()
    world.store.is_down = True
    waits = [world.look() for _ in range(6)]
    assert waits == [1, 2, 4, 8, 10, 10]
    assert world.events() == {"store_unreadable"}
    assert set(world.local()) == {7}
    world.store.is_down = False
    world.look_until_idle()
    assert world.events() == set()


def test_unreadable_object_stops_no_lower_version(world: MirrorWorld):
    def fail(name: str, path: str) -> None:
        if name == "7" and path.startswith("variables"):
            reads.append(path)
            raise StoreError("AccessDenied")

    reads: list[str] = []
    world.store.upload_version(6)
    world.store.upload_version(7)
    world.store.before_read = fail
    for _ in range(14):
        world.look()
    assert world.local() == {6: world.stored(6)}
    assert world.events() == {"version_incomplete"}
    # It is tried again after a rest, and then one read is enough.
    world.clock.advance(RELIST_NS / NS_PER_SECOND)
    reads.clear()
    world.look(), world.look()
    assert len(reads) == 1
    assert world.events() == {"version_incomplete"}
    world.clock.advance(RELIST_NS / NS_PER_SECOND)
    world.store.before_read = lambda name, path: None
    world.look_until_idle()
    assert world.local()[7] == world.stored(7)


def test_restart_copies_only_the_rest(world: MirrorWorld):
    world.store.upload_version(7, size=500)
    world.store.read_bytes_max = 100
    reads = 0

    def fail_at_fifth(name: str, path: str) -> None:
        nonlocal reads
        reads += 1
        if reads == 5:
            raise StoreError("reset")

    world.store.before_read = fail_at_fifth
    world.look(), world.look()
    world.restart()
    world.look_until_idle()
    assert world.local() == {7: world.stored(7)}
    # One read of the graph, ten of the variables, and the one that failed.
    assert reads == 12


def test_versions_of_a_former_process_stay(world: MirrorWorld):
    world.store.upload_version(7)
    world.look_until_idle()
    world.restart()
    reads: list[str] = []
    world.store.before_read = lambda name, path: reads.append(path)
    world.look_until_idle()
    assert (set(world.local()), reads) == ({7}, [])


def test_restart_with_all_copies_ends_without_notes(world: MirrorWorld):
    world.store.upload_version(7)
    world.look_until_idle()
    world.restart()
    assert world.events() == {"store_not_read"}
    world.look_until_idle()
    assert world.events() == set()


def test_stopped_mirror_says_no_more(world: MirrorWorld):
    world.store.upload_version(7)
    world.look()
    others = world.versions.notes
    world.store.before_read = lambda name, path: world.mirror.stop()
    world.look()
    world.store.is_down = True
    world.look()
    assert world.versions.notes == others


def test_damaged_copy_is_copied_again(world: MirrorWorld):
    world.store.upload_version(7)
    world.look_until_idle()
    (world.base / "7/saved_model.pb").unlink()
    world.restart()
    world.look_until_idle()
    assert world.local() == {7: world.stored(7)}


def test_restart_ends_an_interrupted_deletion(world: MirrorWorld):
    world.store.upload_version(7)
    world.look_until_idle()
    (world.base / removed_name(6) / "variables").mkdir(parents=True)
    world.restart()
    world.look()
    assert [entry.name for entry in world.base.iterdir()] == ["7"]


def test_version_that_loads_meanwhile_is_not_replaced(world: MirrorWorld):
    world.store.upload_version(7)
    world.look_until_idle()
    former = world.local()
    world.store.upload_version(7)
    # The load begins after the look has asked what is in use.
    world.store.before_read = lambda name, path: world.versions.used.add(7)
    world.clock.advance(100)
    world.look_until_idle()
    assert (world.local(), world.events()) == (former, {"store_version_overwritten"})
    world.versions.failed_ones = {7}
    world.look_until_idle()
    assert world.local() == {7: world.stored(7)}


def test_old_versions_go_by_the_budget(tmp_path: Path):
    # A version has 22 bytes.
    world = MirrorWorld(tmp_path, budget_bytes=70)
    for version in (1, 2, 3, 4, 5):
        world.store.upload_version(version)
        world.look_until_idle()
        world.look_until_idle()
        world.versions.used = {1}
    assert set(world.local()) == {1, 4, 5}


def test_restarted_mirror_links_what_it_has(world: MirrorWorld):
    world.store.digest_of = lambda data: (f"md5:{md5(data).hexdigest()}", True)
    world.store.upload_version(6)
    world.look_until_idle()
    world.restart()
    world.versions.used = {6}
    world.store.upload_version(7)
    world.store.upload("7", "variables/variables.data", world.stored(6)["variables/variables.data"])
    reads: list[str] = []
    world.store.before_read = lambda name, path: reads.append(f"{name}/{path}")
    world.look_until_idle()
    assert world.local()[7] == world.stored(7)
    assert reads == ["7/saved_model.pb"]


def test_full_disk_deletes_all_spare_versions(world: MirrorWorld):
    world.store.upload_version(6)
    world.look_until_idle()
    world.store.upload_version(7)

    def fill(name: str, path: str) -> None:
        if world.local().keys() == {6}:
            raise OSError(errno.ENOSPC, "No space left on device")

    world.store.before_read = fill
    world.look_until_idle()
    world.look_until_idle()
    assert set(world.local()) == {7}


def test_directory_of_another_process_is_left_alone(world: MirrorWorld, tmp_path: Path):
    world.store.upload_version(7)
    world.look_until_idle()
    second = MirrorWorld(tmp_path)
    second.store.upload_version(8)
    assert second.look() == PERIOD_SECONDS
    assert second.events() == {"model_cache_in_use"}
    assert second.store.request_count == 0
    world.mirror.close()
    second.look_until_idle()
    assert 8 in second.local()


def test_directory_appears_with_the_first_version(world: MirrorWorld):
    def fail(name: str, path: str) -> None:
        if path.startswith("variables"):
            raise StoreError("reset")

    world.store.upload_version(7)
    world.store.before_read = fail
    world.look(), world.look()
    # A source with an empty base path may unload what it has; with a missing one it does not.
    assert partial_directory(world.base, 7).exists()
    assert not world.base.exists()


def test_rolled_back_version_leaves_its_predecessor(world: MirrorWorld):
    world.store.upload_version(6)
    world.store.upload_version(7)
    world.look_until_idle()
    world.versions._select = lambda versions: [v for v in versions if v != 7][-1:]
    world.look_until_idle()
    assert 6 in world.local()


def test_newer_version_passes_a_long_copy(world: MirrorWorld):
    world.store.upload_version(7, size=5_000)
    world.store.read_bytes_max = 100
    world.store.before_read = lambda name, path: world.clock.advance(1)
    world.look(), world.look()
    assert world.local() == {}
    world.store.upload_version(8)
    for _ in range(6):
        world.look()
    assert set(world.local()) == {8}
    assert not partial_directory(world.base, 7).exists()
