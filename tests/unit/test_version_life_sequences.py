"""Any sequence of drops, failures, rollbacks and changes, and the invariants after each."""

from hypothesis import settings

from tests.unit.worlds.life_machine import LifeMachine

TestLifeMachine = LifeMachine.TestCase
TestLifeMachine.settings = settings(
    max_examples=settings().max_examples * 5 // 2, stateful_step_count=30, deadline=None
)
