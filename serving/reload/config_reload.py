"""ConfigReloader: changes the configuration, either completely or not at all."""

import threading
from collections.abc import Collection, Sequence
from dataclasses import replace

import structlog

from serving.base.clock import Clock, seconds_since
from serving.base.errors import FailedPrecondition, NotFound, OperatorError, StatusCode, Unavailable
from serving.base.name_text import listed
from serving.config.plan import ConfigPlan, plan_change
from serving.core.model_config import ModelConfig, SettingsByModel
from serving.core.servable import AVAILABLE, END, HEALTHY, ServableStatus
from serving.manager.startup_wait import is_one_coming
from serving.manager.state_monitor import StateMonitor
from serving.reload.served_models import ServedModels

_log = structlog.get_logger(__name__)


class ConfigReloader:
    """Plans changes of the configured models, applies them and waits for new models. Any thread.

    Changes are applied one after the other. At most one caller waits for its new models: a newer change
    is applied at once and ends the wait for an older change with an error.
    """

    def __init__(
        self,
        served: ServedModels,
        monitor: StateMonitor,
        settings: SettingsByModel,
        clock: Clock,
    ) -> None:
        """Takes the settings of the first configuration."""
        self._served = served
        self._monitor = monitor
        self._settings = settings
        self._clock = clock
        self._changing = threading.Lock()
        # Notified when a state, `_change_count` or `_is_stopping` changes.
        self._changed = threading.Condition()
        self._change_count = 0
        self._applied_count = 0
        self._is_stopping = False
        # For each added model that may still be awaited: its statuses from before it was added.
        self._stale: dict[str, tuple[ServableStatus, ...]] = {}
        monitor.add_listener(self._on_state_change)

    @property
    def settings(self) -> SettingsByModel:
        """The settings of the configured models, and of models to be added later."""
        return self._settings

    @property
    def applied_count(self) -> int:
        """The number of changes since the start, without empty ones."""
        return self._applied_count

    def apply_first(self, plan: ConfigPlan) -> None:
        """Applies the plan of a server that has no models yet; no other change runs meanwhile."""
        with self._changing:
            self._served.apply(plan)

    def change(
        self,
        models: Sequence[ModelConfig] | None = None,
        settings: SettingsByModel | None = None,
    ) -> ConfigPlan:
        """Applies new models, or settings, or both; None keeps the present ones. Does not wait.

        The settings within `models` are ignored. Raises InvalidConfig if the change is invalid and
        Unavailable if the server is stopping; then nothing has changed.
        """
        return self._change(models, settings, is_awaited=False)[0]

    def reload(self, models: Sequence[ModelConfig], timeout_seconds: float) -> ConfigPlan:
        """Applies `change` and waits until each new model has an AVAILABLE version or has failed.

        The new models are the added ones. If nothing changes, as when a caller repeats its request after
        a timeout, the new models are those that are still awaited. Raises like `change`. Also raises, with
        the change applied and kept: FailedPrecondition if a model failed, or UNKNOWN if a model is not
        available `timeout_seconds` after the call, both with each model and its reason. Raises ABORTED
        if a newer change was applied meanwhile.
        """
        # The clock starts before the change, because waiting for another change counts too.
        start_ns = self._clock.now_ns()
        plan, count = self._change(models, None, is_awaited=True)
        with self._changed:
            names = [model.name for model in plan.added]
            if plan.is_empty:
                names = [name for name in self._stale if name in self._served.names]
            self._wait(names, count, start_ns, timeout_seconds)
            self._raise_unless_come(names)
        return plan

    @property
    def unloaded(self) -> frozenset[str]:
        """The models that `set_unloaded` has taken out of service."""
        return self._served.unloaded

    def set_unloaded(self, name: str, *, is_unloaded: bool) -> None:
        """Takes a configured model out of service, whatever its configuration says, or puts it back.

        Waits only for a change under way. The effect lasts through later changes of the configuration
        while the model stays configured. Raises NotFound if the model is not configured, and Unavailable
        if the server is stopping.
        """
        with self._changing:
            if self._is_stopping:
                raise Unavailable("the server is stopping; its models stay as they are")
            if name not in self._served.names:
                raise NotFound(f"model {name!r} is not configured any more")
            self._served.set_unloaded(name, is_unloaded=is_unloaded)

    def stop(self) -> None:
        """Refuses further changes, and ends the wait of a caller with an error."""
        with self._changing, self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def _change(
        self,
        models: Sequence[ModelConfig] | None,
        settings: SettingsByModel | None,
        *,
        is_awaited: bool,
    ) -> tuple[ConfigPlan, int]:
        """Applies the change and returns its plan and number.

        An empty change that is not awaited does not get a new number.
        """
        with self._changing:
            if self._is_stopping:
                raise Unavailable("the server is stopping; its configuration stays as it is")
            settings = settings or self._settings
            wanted = [
                replace(model, settings=settings.of(model.name))
                for model in (self._served.models if models is None else models)
            ]
            plan = plan_change(self._served.models, wanted)
            stale = self._monitor.statuses()
            self._served.apply(plan)
            self._settings = settings
            with self._changed:
                self._change_count += is_awaited or not plan.is_empty
                self._applied_count += not plan.is_empty
                count = self._change_count
                self._stale |= {model.name: stale.get(model.name, ()) for model in plan.added}
                for model in plan.removed:
                    self._stale.pop(model.name, None)
                self._changed.notify_all()
        if not plan.is_empty:
            _log.info("config_changed", changes=plan.lines())
        return plan, count

    # --- Holding `_changed` -----------------------------------------------------------------------

    def _wait(
        self, names: Sequence[str], count: int, start_ns: int, timeout_seconds: float
    ) -> None:
        while any(self._is_awaited(name) for name in names):
            if self._is_stopping:
                raise Unavailable("the configuration was changed, but the server is stopping")
            if self._change_count != count:
                raise OperatorError(
                    "the configuration was changed, and changed again before the new models were "
                    "available; ask for their status",
                    code=StatusCode.ABORTED,
                )
            remaining_seconds = timeout_seconds - seconds_since(self._clock, start_ns)
            if remaining_seconds <= 0:
                return
            self._clock.wait(self._changed, remaining_seconds)

    def _is_awaited(self, name: str) -> bool:
        statuses = self._monitor.statuses().get(name, ())
        return not has_come(statuses) and not self._has_failed(name, statuses)

    def _has_failed(self, name: str, statuses: Sequence[ServableStatus]) -> bool:
        return has_failed(statuses, self._stale.get(name, ()), self._served.aspired_versions(name))

    def _raise_unless_come(self, names: Sequence[str]) -> None:
        statuses, reasons, is_failed = self._monitor.statuses(), {}, False
        for name in names:
            mine, stale = statuses.get(name, ()), self._stale.get(name, ())
            if not has_come(mine):
                reasons[name] = self._reason(name, [item for item in mine if item not in stale])
                is_failed |= self._has_failed(name, mine)
            if not self._is_awaited(name):
                # It is available, or its failure is reported now, so it is not awaited again.
                self._stale.pop(name, None)
        if not reasons:
            return
        what = listed((f"{name}: {reason}" for name, reason in reasons.items()), "; ")
        message = f"{len(reasons)} model(s) did not become available: {what}"
        if is_failed:
            raise FailedPrecondition(message)
        # TensorFlow Serving uses this code. DEADLINE_EXCEEDED is not used, because a client's library
        # also returns it if the server did not answer.
        raise OperatorError(
            f"{message}. The change stands; the same request waits for them again",
            code=StatusCode.UNKNOWN,
        )

    def _reason(self, name: str, statuses: Sequence[ServableStatus]) -> str:
        if statuses:
            return listed(_state_text(status) for status in statuses)
        notes = [
            " ".join([note.event, *(f"{key}={value}" for key, value in note.values)])
            for note in self._served.notes(name)
        ]
        found = f"no version found in {self._served.base_path(name)!r}"
        return f"{found} ({'; '.join(notes)})" if notes else found

    def _on_state_change(self, status: ServableStatus) -> None:
        del status  # A waiting caller checks all of its models.
        with self._changed:
            self._changed.notify_all()


def has_come(statuses: Sequence[ServableStatus]) -> bool:
    """True if a model with these versions can answer. Pure."""
    return any(status.state is AVAILABLE for status in statuses)


def has_failed(
    statuses: Sequence[ServableStatus],
    stale: Sequence[ServableStatus],
    aspired: Collection[int],
) -> bool:
    """True if a version has failed and no version is on its way. Pure.

    `stale` statuses do not count. `aspired` are the versions that the model's source aspires. A load that was
    cancelled does not count either: another version takes its place, and may not have a status yet.
    """
    fresh = [status for status in statuses if status not in stale]
    return any(map(_is_failure, fresh)) and not is_one_coming(fresh, aspired)


def _is_failure(status: ServableStatus) -> bool:
    is_cancelled = status.health.code is StatusCode.CANCELLED
    return status.state is END and status.health != HEALTHY and not is_cancelled


def _state_text(status: ServableStatus) -> str:
    stage = f" ({status.stage.value})" if status.stage else ""
    why = f": {status.health.message}" if status.health.message else ""
    return f"version {status.id.version} is {status.state.name}{stage}{why}"
