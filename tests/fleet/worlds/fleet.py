"""Servers of a fleet as reports, and a decision on them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fleet.rollout.decision import Decision, decide
from fleet.rollout.figures import EDGES_NS, VersionFigures
from fleet.rollout.reports import Grant, ModelReport, ServerReport, Sighting, VersionReport
from fleet.rollout.state import FleetRollout, FleetState, ModelState
from fleet.rollout.watch import ModelWatch
from fleet.rollout.wave_settings import WaveSettings, WaveSize
from serving.base.clock import NS_PER_SECOND, Now
from serving.base.errors import StatusCode
from serving.core.model_settings import CanarySettings
from serving.core.servable import AVAILABLE, END, LOADING, Health

MODEL = "ctr"
REFUSED = Health(StatusCode.FAILED_PRECONDITION, "gate signature: output 'y' is gone")
NO_MEMORY = Health(StatusCode.RESOURCE_EXHAUSTED, "no memory")

SETTINGS = WaveSettings(
    sizes=(WaveSize(1), WaveSize(share=0.4)),
    load_count_max=2,
    judgement=CanarySettings(request_count=1_000),
    judged_seconds=60,
    lost_seconds=30,
    load_seconds_max=100,
)
# None of the waves is judged by requests.
LAST_WAVE_ONLY = replace(SETTINGS, sizes=(), load_count_max=10)


def requests(count: int, *, failed: int = 0, latency_ns: int = 2_000_000) -> VersionFigures:
    """Returns requests that all took about `latency_ns`."""
    counts = [0] * (len(EDGES_NS) + 1)
    counts[next(index for index, edge in enumerate(EDGES_NS) if edge >= latency_ns)] = count
    return VersionFigures(count, failed, tuple(counts))


def serving(version: int, *, found: frozenset[int], order: int = 0) -> ModelReport:
    """Returns a server that was granted `version` and serves it."""
    return ModelReport(
        granted=version,
        order=order,
        default_version=version,
        found=found,
        versions={version: VersionReport(state=AVAILABLE)},
    )


@dataclass
class FleetWorld:
    """A fleet that serves version 1, with version 2 on every disk. Seconds are set by the test."""

    server_count: int = 10
    settings: WaveSettings = SETTINGS
    found: frozenset[int] = frozenset({1, 2})
    second: int = 1_000
    state: FleetState = field(default_factory=FleetState)
    watches: Mapping[str, ModelWatch] = field(default_factory=dict)
    grants: tuple[Grant, ...] = ()
    seen_at: dict[str, int] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    incarnations: dict[str, int] = field(default_factory=dict)
    draining: set[str] = field(default_factory=set)
    # Servers that have not reported to a new coordinator, and the second since which it waits.
    unseen: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reports = {
            f"s{number}": serving(1, found=self.found) for number in range(self.server_count)
        }

    @property
    def model(self) -> ModelState:
        return self.state.models[MODEL]

    @property
    def rollout(self) -> FleetRollout:
        assert self.model.rollout is not None
        return self.model.rollout

    @property
    def members(self) -> list[str]:
        return sorted(self.rollout.members)

    def change(self, name: str, **values: object) -> None:
        self.reports[name] = replace(self.reports[name], **values)  # type: ignore[arg-type]

    def set_version(self, name: str, version: int, row: VersionReport) -> None:
        self.change(name, versions={**self.reports[name].versions, version: row})

    def take(self, *, until: str = "serving", figures: VersionFigures | None = None) -> None:
        """Lets servers take the grants of the last step, and serve or load them."""
        for grant in self.grants:
            name, version = grant.server, grant.version
            self.change(name, granted=version, order=grant.order)
            if version is None:
                self.change(name, default_version=None, versions={})
                continue
            if until == "loading":
                self.set_version(name, version, VersionReport(state=LOADING))
                continue
            shown = {} if figures is None else {"figures": figures}
            self.set_version(name, version, VersionReport(state=AVAILABLE, **shown))  # type: ignore[arg-type]
            self.change(name, default_version=version)

    def fail(self, name: str, version: int, health: Health) -> None:
        self.set_version(name, version, VersionReport(state=END, health=health))

    def answer(self, name: str, version: int, figures: VersionFigures) -> None:
        self.set_version(name, version, VersionReport(state=AVAILABLE, figures=figures))

    def answer_stable(self, figures: VersionFigures) -> None:
        """Sets the requests of version 1 on the servers that have not been granted another one."""
        for name, report in self.reports.items():
            if report.granted == 1:
                self.answer(name, 1, figures)

    def sightings(self) -> dict[str, Sighting]:
        """Returns the servers by name, silent ones among them: the order must not matter."""
        sightings = {
            name: Sighting(
                ServerReport(
                    incarnation=self.incarnations.get(name, 1),
                    models={MODEL: report},
                    is_draining=name in self.draining,
                ),
                self.seen_at[name] * NS_PER_SECOND,
            )
            for name, report in self.reports.items()
        }
        sightings |= {
            name: Sighting(None, since * NS_PER_SECOND) for name, since in self.unseen.items()
        }
        return dict(sorted(sightings.items()))

    def step(self, seconds: int = 1) -> Decision:
        self.second += seconds
        for name in self.reports.keys() - self.silent:
            self.seen_at[name] = self.second
        now = Now(self.second * NS_PER_SECOND, self.second * NS_PER_SECOND)
        decision = decide(self.state, self.watches, self.sightings(), self.settings, now)
        self.state, self.watches, self.grants = decision.state, decision.watches, decision.grants
        return decision

    def granted(self, version: int) -> list[str]:
        """Returns the servers that the last step grants `version`."""
        return sorted(grant.server for grant in self.grants if grant.version == version)

    def pass_wave(self) -> None:
        """Lets the servers of a wave serve, and the time of its judgement pass."""
        wave = self.rollout.wave_index
        for _ in range(20):
            self.take()
            self.step()
            if self.rollout.wave_index == wave and not self.granted(self.rollout.version):
                break
        self.step(round(self.settings.judged_seconds))
