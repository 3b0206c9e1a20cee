from dataclasses import replace

import pytest

from serving.base.errors import DataLoss, DoesNotFitBeside, FailedPrecondition, MillpondError
from serving.core.model_settings import GateMode, GateSettings, ModelSettings, PolicyName
from serving.core.servable import END, AspiredVersion, Health, ServableId, ServableStatus
from serving.gates.gates import Gate, verdict_of
from serving.manager.failed_loads import FailedLoad, why_try_again
from tests.unit.fakes.errors import permanent

ENFORCE, WARN = GateMode.ENFORCE, GateMode.WARN

ENFORCED = ModelSettings(gates=GateSettings(latency=ENFORCE, drift=ENFORCE))


def failed(error: MillpondError, settings: ModelSettings, *refused_by: Gate) -> FailedLoad:
    status = ServableStatus(
        id=ServableId("m", 2),
        state=END,
        health=Health.of(error),
        verdicts=(
            verdict_of(Gate.GOLDEN, ENFORCE, []),
            verdict_of(Gate.SIGNATURE, WARN, ["a fault that only warns"]),
            *(verdict_of(gate, ENFORCE, ["bad"]) for gate in refused_by),
        ),
    )
    return FailedLoad.of(AspiredVersion(version=2, directory="/m/2"), status, settings)


def with_gates(settings: ModelSettings, **changes: object) -> ModelSettings:
    return replace(settings, gates=replace(settings.gates, **changes))  # type: ignore[arg-type]


REFUSED = failed(FailedPrecondition("slow"), ENFORCED, Gate.LATENCY)


@pytest.mark.parametrize("changes", [{"latency": WARN}, {"latency_ratio_max": 5.0}])
def test_load_retries_once_its_gate_changes(changes: dict[str, object]):
    now = with_gates(ENFORCED, **changes)
    assert why_try_again(REFUSED, now) == "the settings of gate 'latency' have changed"


@pytest.mark.parametrize(
    "now",
    [
        ENFORCED,
        with_gates(ENFORCED, drift=WARN, golden=ENFORCE, signature=WARN, warm_up=WARN),
        replace(ENFORCED, keep_previous_seconds=9.0, aspired_version_policy=PolicyName.AUTO),
    ],
)
def test_load_ignores_change_of_unrelated_settings(now: ModelSettings):
    assert why_try_again(REFUSED, now) == ""


def test_load_of_broken_files_ignores_settings():
    now = ModelSettings(
        aspired_version_policy=PolicyName.RESOURCE,
        keep_previous_seconds=9.0,
        gates=GateSettings(latency=GateMode.OFF),
    )
    assert why_try_again(failed(permanent(), ENFORCED), now) == ""


@pytest.mark.parametrize(
    ("now", "name"),
    [
        (replace(ENFORCED, aspired_version_policy=PolicyName.RESOURCE), "aspired_version_policy"),
        (replace(ENFORCED, keep_previous_seconds=9.0), "keep_previous_seconds"),
    ],
)
def test_unfit_load_retries_if_memory_sharing_changes(now: ModelSettings, name: str):
    load = failed(DoesNotFitBeside("beside 1"), ENFORCED)
    assert why_try_again(load, ENFORCED) == ""
    assert why_try_again(load, now) == f"{name} has changed"


def test_enforced_warm_up_refuses_any_record_error():
    load = failed(DataLoss("record 2"), ModelSettings(), Gate.WARM_UP)
    assert why_try_again(load, with_gates(ModelSettings(), warm_up=WARN))
