"""Decides the next actions of a fleet from the reports of its servers. Pure functions on values.

A version comes in waves: one server, a share of the fleet, the rest. Between two waves it is judged by
its loads and, by a canary's rule, by its requests beside those of the version on the other servers. The
last wave is judged by loads, by servers that end, and by failed requests, until it has held as long as a
judgement. A version that fails too often is stopped at once, in each wave. A bad verdict ends the
rollout: every server is granted the stable version again in the same step, and the version is blocked in
the fleet.

Each step compares the version that each server should have with the one that it was granted, so an
action that was lost is repeated, and a server that comes back is corrected. The promises:

- A server selects only the version that it was granted. So a version is never beyond its wave.
- At most `load_count_max` servers have a *slot*, and a server swaps forward only with a slot. A slot is
  given back when a report shows the end of the load, or when the server is lost. So under a partition at
  most `load_count_max` servers swap beside those that were lost while they swapped. No new slot is given
  while more servers than that swap, for example because lost servers have come back. A slot does not count
  if its load was withdrawn and does not end.
- A version that waits for files while no server that may try it has them gives way to a newer one.
- A version about which a gate has warned on a server goes to no further server until an operator has
  decided, unless the settings let it pass, or the gate is one whose warnings are shown only.
- A rollout begins only with a version that two servers have, so one server that lies about its files holds
  nothing up.
- A server that serves nothing, or a version that it must not serve, needs no slot.
- Before a first version has passed there is no version to go back to. Until then each server keeps the
  version that it answers with, even if it is blocked, and a version that was stopped is withdrawn from the
  servers that answer with none.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.waves.granting import Granting
from fleet.waves.judging import judged
from fleet.waves.model_step import ModelStep
from fleet.waves.reports import Grant, Sighting
from fleet.waves.state import FleetState, ModelState
from fleet.waves.view import model_views
from fleet.waves.watch import ModelWatch
from fleet.waves.wave_settings import WaveSettings
from serving.base.clock import Now


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The state after a step, which must be written before one of the `grants` is sent."""

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
    """Decides the next state and the actions. `sightings` has each server of the fleet, by its name."""
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
