"""Lets the tests import `tests.unit.fakes` wherever pytest is started."""

import sys
from pathlib import Path

REPOSITORY = str(Path(__file__).parents[2])

if REPOSITORY not in sys.path:
    sys.path.insert(0, REPOSITORY)
