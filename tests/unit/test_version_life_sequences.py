"""Any sequence of drops, failures, rollbacks and changes, and the invariants after each."""

from hypothesis import settings

from tests.unit.worlds.life_machine import LifeMachine

TestLifeMachine = LifeMachine.TestCase
TestLifeMachine.settings = settings(stateful_step_count=30)
