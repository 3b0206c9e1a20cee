"""Functions of MetricSources that combine several parts of a server."""

from collections.abc import Callable, Mapping

from serving.core.servable import ServableId
from serving.data_plane.plane import DataPlane
from serving.data_plane.servables import ArenaStatistics, RequestReservoirStatistics, Servable
from serving.loading.reservoirs import Reservoirs
from serving.rpc.health import HealthView


def models_ready(health: Callable[[], HealthView]) -> Mapping[str, bool]:
    """Returns for each configured model the decision that `/readyz?model=` shows."""
    view = health()
    return {name: view.is_model_serving(name) for name in view.models}


def arena_statistics(
    plane: DataPlane,
    servable: Callable[[ServableId], Servable | None],
    servable_id: ServableId,
) -> ArenaStatistics | None:
    """Returns the figures of a version's arena; None if it has no arena or is not loaded."""
    loaded = servable(servable_id)
    if loaded is None:
        return None
    try:
        return loaded.arena_statistics()
    except plane.StatusError:
        return None  # It was destroyed after the look-up.


def reservoir_statistics(reservoirs: Reservoirs) -> Mapping[str, RequestReservoirStatistics]:
    """Returns the figures of each model's reservoir, by model."""
    return {name: reservoir.statistics() for name, reservoir in reservoirs.by_name().items()}
