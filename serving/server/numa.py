"""Decides what `--numa` means on this machine."""

import os

import structlog

from serving.base.numa_nodes import NumaNode, numa_nodes
from serving.config.server_config import ServerConfig
from serving.data_plane.plane import DataPlane

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def usable_nodes() -> list[NumaNode]:
    """The NUMA nodes of which the process may use cores."""
    return numa_nodes(os.sched_getaffinity(0))


def is_for_nodes(config: ServerConfig, nodes: list[NumaNode]) -> bool:
    """True if threads stay on a node, and parameters lie on all of them in turns."""
    return config.numa == "interleave" or (config.numa == "auto" and len(nodes) > 1)


def interleave_parameters(config: ServerConfig, data_plane: DataPlane) -> None:
    """Lays the parameters of versions on all nodes in turns, if `--numa` wants it and the kernel permits it."""
    nodes = usable_nodes()
    if not is_for_nodes(config, nodes):
        return
    numbers = [node.number for node in nodes]
    if data_plane.interleave_slabs(numbers):
        _log.info("parameters_interleaved", nodes=numbers)
    else:
        _log.warning(
            "parameters_not_interleaved",
            nodes=numbers,
            remedy="permit the system call mbind (in a container CAP_SYS_NICE), or use --numa=off",
        )
