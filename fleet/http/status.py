"""The status of a fleet as a document, for its commands and its HTTP. Pure."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fleet.rollout.comparison import Comparison
from fleet.rollout.ends import WITHOUT_CAUSE, cause_on
from fleet.rollout.failures import counted
from fleet.rollout.figures import VersionFigures, total
from fleet.rollout.reports import Sighting
from fleet.rollout.state import FleetState, ModelState
from fleet.rollout.trial import Trial, trial_of
from fleet.rollout.view import ModelView, can_serve, is_silent, model_views
from fleet.rollout.warned_gates import is_held
from fleet.rollout.watch import ModelWatch
from fleet.rollout.wave_settings import WaveSettings
from serving.base.clock import NS_PER_SECOND
from serving.base.name_text import natural_order
from serving.core.blocked_versions import as_rows

_NS_PER_MS = 1e6


def fleet_status(
    state: FleetState,
    watches: Mapping[str, ModelWatch],
    sightings: Mapping[str, Sighting],
    settings: WaveSettings,
    now_ns: int,
) -> dict[str, Any]:
    """The document of the status: the models with their rollouts and versions, and the servers."""
    views = model_views(sightings, state.models, settings.lost_seconds, now_ns)
    models = {name: state.models.get(name, ModelState()) for name in views}
    trials = {
        name: trial_of(model, views[name], settings, now_ns) for name, model in models.items()
    }
    return {
        "order": state.order,
        "models": {
            name: {
                **_model(models[name], views[name], state.order),
                **_progress(trials[name], watches.get(name, ModelWatch())),
            }
            for name in sorted(views, key=natural_order)
        },
        "servers": [
            _server(name, sightings[name], settings.lost_seconds, now_ns)
            for name in sorted(sightings, key=natural_order)
        ],
    }


def _progress(trial: Trial | None, watch: ModelWatch) -> dict[str, Any]:
    return {
        "waits_for": watch.waits_for,
        "rollout": None if trial is None else _rollout(trial, watch.comparison),
    }


def _model(state: ModelState, view: ModelView, order: int) -> dict[str, Any]:
    return {
        "stable": state.stable,
        "previous": state.previous,
        "is_paused": state.is_paused,
        "loading": sorted(state.loading, key=natural_order),
        "blocked_versions": as_rows(state.blocked),
        "verdicts": [asdict(verdict) for verdict in state.verdicts],
        "versions": _versions(view),
        "found_versions": sorted(view.found()),
        # The servers that cannot serve the stable version, because they lack its files.
        "without_files": _without_files(state, view),
        "ignored_by": sorted(
            (name for name, report in view.live.items() if report.order > order), key=natural_order
        ),
    }


def _without_files(state: ModelState, view: ModelView) -> list[str]:
    """The live servers that neither serve the stable version nor have it on their disks."""
    if state.stable is None:
        return []
    without = (name for name, row in view.live.items() if not can_serve(row, state.stable))
    return sorted(without, key=natural_order)


def _rollout(trial: Trial, comparison: Comparison) -> dict[str, Any]:
    rollout, view, is_last = trial.rollout, trial.view, trial.is_last_wave
    if comparison.wave != trial.wave:
        # An operation has changed the wave since the last decision, so nothing is known of this wave yet.
        comparison = Comparison()
    failed = sorted(rollout.failed_servers, key=natural_order)
    # In the last wave the old version's requests of earlier waves count too (`counted`).
    new, old = counted(trial, comparison)
    return {
        "version": trial.version,
        "wave": rollout.wave_index + 1,
        "wave_count": len(trial.settings.sizes) + 1,
        "serving_count": sum(1 for _ in view.serving(trial.version)),
        "needed_count": view.fleet_size if is_last else trial.needed_count,
        "members": sorted(rollout.members, key=natural_order),
        "setbacks": failed,
        "causes": {name: cause_on(view, name, trial.version) or WITHOUT_CAUSE for name in failed},
        # By server, the warnings of its gates; of the first servers only.
        "warned": {name: warning.reason for name, warning in rollout.warned.items()},
        # True if the version waits for an operator because of these warnings.
        "is_held": is_held(rollout, trial.settings),
        "judgement": _judgement(trial, comparison),
        "request_count": new.request_count,
        "failed_count": new.failed_count,
        "is_promoted": rollout.is_promoted,
        # The reason why the wave compares the two versions a second time; "" if it compares them once.
        "doubt": comparison.doubt,
        "compared": None if is_last else {"wave": _figures(new), "control": _figures(old)},
    }


def _judgement(trial: Trial, comparison: Comparison) -> dict[str, float | int | None]:
    """The requests or seconds after which a wave is judged, and the seconds for which it has been full.

    `passed_seconds` is None until the wave is full. `request_count` is 0 in the last wave, which is judged
    by time alone.
    """
    since_ns, settings = comparison.full_since_ns, trial.settings
    passed_seconds = None
    if since_ns is not None:
        passed_seconds = round((trial.now_ns - since_ns) / NS_PER_SECOND, 1)
    return {
        "request_count": 0 if trial.is_last_wave else settings.judgement.request_count,
        "seconds": settings.judged_seconds,
        "passed_seconds": passed_seconds,
    }


def _figures(figures: VersionFigures) -> dict[str, float]:
    return {
        "request_count": figures.request_count,
        "failed_count": figures.failed_count,
        "p99_ms": figures.latency_ns_p99 / _NS_PER_MS,
        "p999_ms": figures.latency_ns_p999 / _NS_PER_MS,
    }


def _versions(view: ModelView) -> list[dict[str, Any]]:
    """The requests of each version over all servers on which it is AVAILABLE."""
    numbers = sorted({number for report in view.live.values() for number in report.versions})
    rows = []
    for number in numbers:
        serving = [*view.serving(number)]
        if not serving:
            continue
        figures = total(view.live[name].versions[number].figures for name in serving)
        rows.append(
            {
                "version": number,
                "server_count": len(serving),
                "default_count": sum(
                    report.default_version == number for report in view.live.values()
                ),
                **_figures(figures),
            }
        )
    return rows


def _server(name: str, sighting: Sighting, lost_seconds: float, now_ns: int) -> dict[str, Any]:
    seconds = (now_ns - sighting.seen_at_ns) / NS_PER_SECOND
    report = sighting.report
    state = "live"
    if is_silent(sighting, lost_seconds, now_ns):
        state = "lost"
    elif sighting.is_draining:
        state = "draining"
    elif report is None:
        state = "unknown"
    models = {} if report is None else report.models
    return {
        "name": name,
        "state": state,
        "seen_seconds": round(seconds, 1),
        "versions": {model: row.default_version for model, row in sorted(models.items())},
        "granted": {model: row.granted for model, row in sorted(models.items())},
    }
