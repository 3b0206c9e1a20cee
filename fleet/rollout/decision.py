"""Decides the next actions of a fleet from the reports of its servers. Pure functions on values.

A version comes in waves: one server, a share of the fleet, the rest. At the end of a wave the coordinator
judges the version by its loads and by its requests. It compares these requests with those of the stable
version on other servers, by the rule of a canary. In the last wave no other servers are left to compare with.
So there a version is judged by its loads, by servers that end and by failed requests, and passes after
`judged_seconds`. In each wave, a version that fails too often is stopped at once. Then the rollout ends: the
same step grants the stable version to every server again, and blocks the new version in the fleet.

Each step compares the version that each server should have with the version that it was granted. So a grant
that was lost is sent again, and a server that comes back is corrected. A step has two halves: `judging.py`
takes the reports into the state, and `granting.py` decides which servers swap now. The promises:

- **No version is beyond its wave**, because a server selects only the version that it was granted.
- **At most `load_count_max` servers swap forward at the same time**, because each of them needs a *slot*. A
  server gives its slot back when its report shows the end of the load. A lost server gives its slot back too,
  because it may never return. So after a cut of the network, lost servers may still swap while other servers
  have their slots. When the lost servers return, no slot is given until the number of swaps is below the
  limit again. A withdrawn load that does not end counts only for twice `load_seconds_max`.
- **A server that serves nothing needs no slot**, because waiting makes nothing better. A server with a version
  that it must not serve needs no slot either.
- **One server holds nothing up.** A rollout begins only with a version that two servers have, because one
  server may lie about its files. If no server that may try a version has its files, a newer version takes
  its place.
- **A warning waits for an operator.** If a gate has warned about a version on a server, no further server
  gets the version until an operator has decided. Warnings of some gates are only shown
  (`warned_gates.py`), and the settings can let all warnings pass.
- **Without a stable version nothing is taken away.** Before a first version has passed, servers have no
  version to go back to. So each server keeps the version that it answers with, even if that version is
  blocked. A stopped version is withdrawn only from servers that answer with no version.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.rollout.granting import Granting
from fleet.rollout.judging import judged
from fleet.rollout.model_step import ModelStep
from fleet.rollout.reports import Grant, Sighting
from fleet.rollout.state import FleetState, ModelState
from fleet.rollout.view import model_views
from fleet.rollout.watch import ModelWatch
from fleet.rollout.wave_settings import WaveSettings
from serving.base.clock import Now


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The result of a step. The caller writes `state` before it sends the first of the `grants`."""

    state: FleetState
    watches: Mapping[str, ModelWatch]
    grants: tuple[Grant, ...] = ()


def decide(
    state: FleetState,
    watches: Mapping[str, ModelWatch],
    sightings: Mapping[str, Sighting],
    settings: WaveSettings,
    now: Now,
) -> Decision:
    """Decides the next state and the grants. `sightings` has each server of the fleet, by its name."""
    models: dict[str, Granting] = {}
    for name, view in model_views(sightings, state.models, settings.lost_seconds, now.ns).items():
        step = ModelStep(
            state=state.models.get(name, ModelState()),
            view=view,
            settings=settings,
            now=now,
            order=state.order + 1,
        )
        after = judged(step, watches.get(name, ModelWatch()))
        models[name] = Granting(after.step, after.watch)
    free = settings.load_count_max - sum(model.swapping_count for model in models.values())
    for name, model in models.items():
        models[name] = model.with_slots(free)
        free -= models[name].slot_count - model.slot_count
    changed = state.changed(
        {**state.models, **{name: model.step.state for name, model in models.items()}}
    )
    grants = tuple(
        Grant(server, name, version, changed.order)
        for name, model in models.items()
        for server, version in model.due()
    )
    return Decision(
        state=changed, watches={name: model.watch for name, model in models.items()}, grants=grants
    )
