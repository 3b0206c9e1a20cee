from pathlib import Path

import pytest

from serving.loading.memory_fit import UNLIMITED_BYTES, available_bytes

GROUP = "sys/fs/cgroup/pod/server"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_available_bytes_are_machines_without_group(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   2000 kB\n"})
    assert available_bytes(root) == 2_000 * 1024


def test_available_bytes_without_any_word_is_unlimited(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) == UNLIMITED_BYTES


def test_available_bytes_of_group_count_page_cache(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/meminfo": "MemAvailable: 2000 kB\n",
            "proc/self/cgroup": "0::/pod/server\n",
            f"{GROUP}/memory.max": "1000\n",
            f"{GROUP}/memory.current": "700\n",
            f"{GROUP}/memory.stat": "anon 300\ninactive_file 400\n",
        },
    )
    assert available_bytes(root) == 700


def test_available_bytes_obey_limit_of_parent_group(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/server\n",
            f"{GROUP}/memory.max": "max\n",
            f"{GROUP}/memory.current": "700\n",
            "sys/fs/cgroup/pod/memory.max": "1000\n",
            "sys/fs/cgroup/pod/memory.current": "900\n",
        },
    )
    assert available_bytes(root) == 100


def test_available_bytes_in_isolated_container(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "5000",
            "sys/fs/cgroup/memory.current": "6000",
        },
    )
    assert available_bytes(root) == 0


@pytest.mark.parametrize(
    ("limit", "expected"), [("4096", 3096), (str(2**63 - 4096), UNLIMITED_BYTES)]
)
def test_available_bytes_of_a_group_of_the_first_kind(
    tmp_path: Path, limit: str, expected: int
) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu:/x\n4:memory:/x\n",
            "sys/fs/cgroup/memory/x/memory.limit_in_bytes": limit,
            "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "1000",
        },
    )
    assert available_bytes(root) == expected


def test_available_bytes_of_this_machine_is_a_number() -> None:
    assert 0 < available_bytes() <= UNLIMITED_BYTES
