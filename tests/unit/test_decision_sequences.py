"""Any sequence of events on one stream, decided without a manager, and the promises after each decision.

    python -m tests.unit.test_decision_sequences COUNT

runs COUNT new sequences. `make fuzz` runs LONG_COUNT of them.
"""

import random
import sys
import time

import pytest
from hypothesis import settings

from tests.unit.worlds.decisions import SEQUENCE_COUNT, run_tree

COUNT = 10_240
LONG_COUNT = 100_000


def run_sequences(first_seed: int, count: int) -> None:
    for seed in range(first_seed, first_seed + count // SEQUENCE_COUNT):
        run_tree(seed)


# It draws no examples of Hypothesis, but `make fuzz` runs the tests of this mark.
@pytest.mark.hypothesis
def test_promises_hold_after_each_decision() -> None:
    # The profile of `make fuzz` draws new examples.
    if settings().derandomize:
        run_sequences(0, COUNT)
    else:
        run_sequences(new_seed(), LONG_COUNT)


def new_seed() -> int:
    return random.SystemRandom().randrange(2**48)


if __name__ == "__main__":
    start_seconds = time.process_time()
    run_sequences(new_seed(), int(sys.argv[1]))
    print(
        f"{sys.argv[1]} sequences in {time.process_time() - start_seconds:.1f} s of processor time"
    )
