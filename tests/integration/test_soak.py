"""The soak's short form; `python -m loadtest soak --minutes 30` is the long one."""

import os

from rich.console import Console

from loadtest.soak import EVENTS, soak

SECONDS = float(os.environ.get("MILLPOND_SOAK_SECONDS", "25"))


def test_random_changes_under_load_lose_no_request_and_find_no_bug():
    result = soak(minutes=SECONDS / 60, rate=100, seed=5, console=Console(quiet=True))
    assert len(result.outcome.codes) > 50 * SECONDS
    # Enough happened, and versions came and went by it.
    assert len(result.done) >= len(EVENTS) // 3
    assert result.loads["version_available"] >= 5
    assert result.loads["version_unloaded"] >= 4
    assert not result.bugs
    assert not result.wrong_count
    assert not result.outcome.codes.any()
