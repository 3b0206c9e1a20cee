"""Random changes of versions, config and disk under load: a short form, and a long one for `make soak`."""

import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from rich.console import Console

from loadtest.commands import soak
from loadtest.drive import soak_unfit
from loadtest.drive.demo_model import DemoModel
from loadtest.drive.mixing_model import write_mixing_model
from loadtest.drive.soak_events import OPENING
from loadtest.drive.soak_unfit import write_spoiled
from tests.integration.kept_exports import kept_demo_model, kept_export

pytestmark = pytest.mark.usefixtures("warm_load_tests", "patient_load_tests")

SHORT_SECONDS = 8
LONG_SECONDS = 60 * float(os.environ.get("MILLPOND_SOAK_MINUTES", "30"))
RATE_PER_SECOND = 100


@pytest.fixture(autouse=True)
def kept_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the models that the soak makes beside the demo's: each takes an import of TensorFlow."""
    mixing = kept_export("mixing", write_mixing_model, ("loadtest/drive/mixing_model.py",))
    monkeypatch.setattr(soak, "write_mixing_model", lambda path: shutil.copytree(mixing, path))

    def make_spoiled(directory: Path) -> None:
        models = kept_demo_model(soak.DEFAULT_TABLE_ROWS)
        base_path = DemoModel.below(models, soak.DEFAULT_TABLE_ROWS).base_path
        write_spoiled(base_path / "1", directory / "spoiled")

    sources = ("serving/commands", "loadtest/drive/demo_model.py", "loadtest/drive/soak_unfit.py")
    spoiled = kept_export("spoiled", make_spoiled, (*sources, "warmup")) / "spoiled"
    monkeypatch.setattr(
        soak_unfit, "write_spoiled", lambda source, target: shutil.copytree(spoiled, target)
    )


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(SHORT_SECONDS, id="short"),
        pytest.param(LONG_SECONDS, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(0)]),
    ],
)
def test_random_changes_lose_no_request(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kept = shutil.copytree(kept_demo_model(soak.DEFAULT_TABLE_ROWS), tmp_path / "models")
    monkeypatch.setattr(soak, "demo_directory", lambda given: nullcontext(given or kept))
    setup = soak.SoakSetup(
        minutes=seconds / 60, rate_per_second=RATE_PER_SECOND, seed=5, load_count_min=6
    )
    result = soak.soak(setup, Console(quiet=True))
    assert len(result.outcome.codes) > RATE_PER_SECOND / 2 * seconds
    # The soak made enough changes, and they changed versions.
    assert set(result.done) >= {event.__name__ for event in OPENING}
    assert result.loads["version_available"] >= 6
    assert result.loads["version_unloaded"] >= 4
    # The soak met the unfit version, and a gate refused it.
    assert result.refusals["FAILED_PRECONDITION"] >= 1
    assert not result.forbidden_answers
    assert not result.bugs
    assert not result.wrong_count
    assert len(result.mixing) > 0
    assert not result.mixing_errors
    assert not result.outcome.codes.any()
