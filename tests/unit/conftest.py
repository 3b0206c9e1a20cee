"""Lets the tests import `tests.unit.fakes` wherever pytest is started."""

import sys
from pathlib import Path

from hypothesis import settings

REPOSITORY = str(Path(__file__).parents[2])

if REPOSITORY not in sys.path:
    sys.path.insert(0, REPOSITORY)

# An example may take any time: a unit test holds on a machine of any speed.
settings.register_profile("any_speed", deadline=None)
settings.load_profile("any_speed")
