"""The meaning of `--numa` for machines with one node and with several."""

import pytest
from structlog.testing import capture_logs

from serving.base.numa_nodes import NumaNode
from serving.config.server_config import ServerConfig
from serving.server import numa
from tests.unit.fakes.data_plane import FakePlane

ONE = [NumaNode(0, (0, 1))]
TWO = [NumaNode(0, (0, 1)), NumaNode(2, (4,))]


def config_with(flag: str) -> ServerConfig:
    return ServerConfig(models=(), numa=flag)


@pytest.mark.parametrize(
    ("flag", "nodes", "is_for_nodes"),
    [("auto", ONE, False), ("auto", TWO, True), ("off", TWO, False), ("interleave", ONE, True)],
)
def test_auto_is_for_several_nodes(flag: str, nodes: list[NumaNode], is_for_nodes: bool) -> None:
    assert numa.is_for_nodes(config_with(flag), nodes) == is_for_nodes


@pytest.mark.parametrize(
    ("can_interleave", "event"),
    [(True, "parameters_interleaved"), (False, "parameters_not_interleaved")],
)
def test_log_says_if_parameters_are_interleaved(
    can_interleave: bool, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numa, "usable_nodes", lambda: TWO)
    plane = FakePlane()
    plane.can_interleave = can_interleave
    with capture_logs() as logs:
        numa.interleave_parameters(config_with("auto"), plane)
    assert plane.interleaved_nodes == [0, 2]
    assert [(line["event"], line["nodes"]) for line in logs] == [(event, [0, 2])]


def test_off_leaves_memory_where_it_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "usable_nodes", lambda: TWO)
    plane = FakePlane()
    numa.interleave_parameters(config_with("off"), plane)
    assert plane.interleaved_nodes == []
