"""The soak's short form; `python -m loadtest soak --minutes 30` is the long one."""

import os

from rich.console import Console

from loadtest.commands.soak import SoakSetup, soak
from loadtest.drive.soak_events import OPENING

SECONDS = float(os.environ.get("MILLPOND_SOAK_SECONDS", "20"))


def test_random_changes_lose_no_request():
    setup = SoakSetup(minutes=SECONDS / 60, rate_per_second=100, seed=5, load_count_min=6)
    result = soak(setup, Console(quiet=True))
    assert len(result.outcome.codes) > 50 * SECONDS
    # The soak made enough changes, and they changed versions.
    assert set(result.done) >= {event.__name__ for event in OPENING}
    assert result.loads["version_available"] >= 6
    assert result.loads["version_unloaded"] >= 4
    # The soak met the unfit version, and a gate refused it.
    assert result.refusals["FAILED_PRECONDITION"] >= 1
    assert not result.forbidden_answers
    assert not result.bugs
    assert not result.wrong_count
    assert not result.outcome.codes.any()
