from pathlib import Path

import pytest

from serving.source.mounts import WATCHED_FILE_SYSTEMS, file_system_of, file_system_type

MOUNT_INFO = """\
24 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 24 0:25 / /mnt rw shared:4 - tmpfs tmpfs rw
31 30 0:26 /export /mnt/models\\040of\\040b rw - nfs4 host:/export rw,vers=4.2
32 24 0:27 / /mnt rw master:1 - fuse.gcsfuse bucket rw
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/models/a", "ext4"),
        ("/mntx/a", "ext4"),
        # The later mount hides the earlier one on the same directory.
        ("/mnt/a", "fuse.gcsfuse"),
        ("/mnt", "fuse.gcsfuse"),
        ("/mnt/models of b/m", "nfs4"),
    ],
)
def test_file_system_is_that_of_the_nearest_mount(path: str, expected: str) -> None:
    assert file_system_type(path, MOUNT_INFO) == expected


def test_file_system_without_mounts_is_unknown(tmp_path: Path) -> None:
    assert file_system_type("/models", "") == ""
    assert file_system_of("/nowhere", tmp_path / "nowhere") == ""


def test_file_system_in_a_chroot_is_known(tmp_path: Path) -> None:
    """A chroot's mounts lack that of its own root."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text("30 24 0:25 / /elsewhere rw - tmpfs tmpfs rw\n")
    assert file_system_of(str(tmp_path)) in WATCHED_FILE_SYSTEMS
    # The types of extended file systems have one number.
    by_number = file_system_of(str(tmp_path), mounts)
    assert by_number == file_system_of(str(tmp_path)).replace("ext3", "ext4").replace(
        "ext2", "ext4"
    )
