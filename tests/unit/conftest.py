"""Lets the tests import `tests.unit.fakes` wherever pytest is started, and compiles protos/."""

import subprocess
import sys
from pathlib import Path

from hypothesis import settings

REPOSITORY = str(Path(__file__).parents[2])

if REPOSITORY not in sys.path:
    sys.path.insert(0, REPOSITORY)

# Compiles protos/ if it has changed, so that the unit tests need no build.
subprocess.run(["cmake", "-P", f"{REPOSITORY}/cmake/protos.cmake"], check=True)

# An example may take any time: a unit test holds on a machine of any speed.
settings.register_profile("any_speed", deadline=None)
# For `make fuzz`: tests that count their examples in the default's number have ten times as many.
settings.register_profile("fuzz", deadline=None, max_examples=1_000)
settings.load_profile("any_speed")
