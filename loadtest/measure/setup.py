"""The parameters of a run in which versions are swapped under load."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtest.plan.ctr_deltas import delta_answer
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.presets import preset
from serving.commands.ctr_model import reference_answer


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The parameters of one run. `loaded` and `reloaded` are model names, often the same. Models of
    `reloaded_too` get a new version whenever `reloaded` gets one.

    With `command`, the server is started by that shell command, and `preset` is only its name.
    """

    preset: str
    loaded: str
    reloaded: str
    rate_per_second: float
    rows: int
    table_rows: int
    swaps: int
    swap_interval_seconds: float
    seed: int
    arrivals: str = "poisson"
    warm_up: str = "records"
    output_filter: Sequence[str] = ()
    extra_flags: Mapping[str, object] | None = None
    command: str | None = None
    reloaded_too: Sequence[str] = ()
    are_deltas: bool = False
    """The versions are those of `loadtest.drive.ctr_deltas`."""
    has_one_graph: bool = False
    """All versions have the graph of the first one, and its output `version`."""

    @property
    def model_names(self) -> Sequence[str]:
        return tuple(dict.fromkeys((self.loaded, self.reloaded, *self.reloaded_too)))

    @property
    def summary(self) -> str:
        """A line for people that describes the server."""
        return preset(self.preset).summary if self.command is None else f"`{self.command}`"

    def load(self) -> CtrLoad:
        """Makes the clients' requests."""
        return CtrLoad(
            self.loaded,
            rows=self.rows,
            table_rows=self.table_rows,
            seed=self.seed,
            output_filter=self.output_filter,
            reference=delta_answer if self.are_deltas else reference_answer,
        )
