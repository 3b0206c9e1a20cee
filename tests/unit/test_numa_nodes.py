"""The NUMA nodes, from a tree like the kernel's."""

from pathlib import Path

from serving.base.numa_nodes import NumaNode, numa_nodes


def tree(folder: Path, **lists: str) -> Path:
    for node, cores in lists.items():
        (folder / node).mkdir(parents=True)
        (folder / node / "cpulist").write_text(f"{cores}\n")
    (folder / "possible").write_text("0-1\n")
    return folder


def test_cores_are_divided_by_node(tmp_path: Path) -> None:
    folder = tree(tmp_path, node0="0-3,8-11", node1="4-7,12-15", node10="16")
    assert numa_nodes(range(17), folder) == [
        NumaNode(0, (0, 1, 2, 3, 8, 9, 10, 11)),
        NumaNode(1, (4, 5, 6, 7, 12, 13, 14, 15)),
        NumaNode(10, (16,)),
    ]


def test_only_the_asked_cores_count(tmp_path: Path) -> None:
    folder = tree(tmp_path, node0="0-3", node1="4-7", node2="")
    assert numa_nodes([5, 4], folder) == [NumaNode(1, (4, 5))]


def test_without_the_kernels_word_there_is_one_node(tmp_path: Path) -> None:
    one = [NumaNode(0, (0, 1, 2))]
    assert numa_nodes([2, 0, 1], tmp_path / "none") == one
    assert numa_nodes([0, 1, 2], tree(tmp_path / "part", node0="0-1")) == one
    assert numa_nodes([0, 1, 2], tree(tmp_path / "odd", node0="0-2", node1="a-b")) == one
    assert numa_nodes([0, 1, 2], tree(tmp_path / "wrong", node0="x")) == one


def test_this_machine_tells_its_nodes() -> None:
    assert numa_nodes([0])[0].cores == (0,)
