"""Grants of a coordinator on Ray that has been replaced, and that come late."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.lead.coordinator import Coordinator
from fleet.rollout.operations import aborted
from fleet.rollout.reports import Grant, ModelReport, ServerReport
from fleet.rollout.wave_settings import WaveSettings
from serving.base.errors import MillpondError
from serving.reload.grants import Grants
from tests.fleet.fakes.ray_store import FakeStore
from tests.fleet.worlds.fleet import MODEL, serving
from tests.unit.fakes.clocks import FakeClock

pytest.importorskip("ray", reason="Ray is not installed: pip install 'millpond[ray]'")

from fleet.ray.leadership import RayLeadership

SETTINGS = WaveSettings(sizes=(), load_count_max=9, judged_seconds=1)
NAMES = ("s0", "s1", "s2")


class Lead:
    """A coordinator that has begun a term. Its grants wait until the test delivers them."""

    def __init__(self, store: Any, clock: FakeClock) -> None:
        term = RayLeadership(store, clock).term()
        assert term is not None
        self.term = term
        self.sent: list[Grant] = []
        self.coordinator = Coordinator(
            term.store, self._send, SETTINGS, clock, order_min=term.order_min
        )
        self.coordinator.set_servers(NAMES)

    def step(self, reports: Mapping[str, ModelReport]) -> None:
        for name, report in reports.items():
            self.coordinator.receive(name, ServerReport(models={MODEL: report}))
        try:
            self.coordinator.step()
        except OSError:
            # It was replaced, and could not write what it has decided.
            return

    def _send(self, grants: Sequence[Grant]) -> None:
        if self.term.is_valid():
            self.sent += grants


class World:
    """Servers that keep grants as a member of a fleet does, and coordinators that replace one another."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store: Any = FakeStore()
        self.leads: list[Lead] = []
        self.newest = 2
        self.reports = {name: serving(1, found=frozenset({1, 2})) for name in NAMES}
        self.grants = {
            name: Grants(None, lambda name, versions: None, self.clock) for name in NAMES
        }
        # The number of the term whose grant each server has taken.
        self.terms = dict.fromkeys(NAMES, 0)
        self.ignored_count = 0

    @property
    def versions(self) -> set[int | None]:
        return {report.granted for report in self.reports.values()}

    def begin(self) -> Lead:
        self.leads.append(Lead(self.store, self.clock))
        return self.leads[-1]

    def drop(self) -> None:
        self.newest += 1
        for name, report in self.reports.items():
            self.reports[name] = replace(report, found=report.found | {self.newest})

    def deliver(self, lead: Lead, position: int = 0) -> None:
        """Delivers a grant, and checks that it undoes no grant of a later term."""
        grant = lead.sent.pop(position)
        name, before = grant.server, self.grants[grant.server].granted(MODEL)
        kept = self.grants[name].grant(MODEL, grant.version, grant.order)
        if lead.term.number < self.terms[name]:
            assert kept == before
            self.ignored_count += 1
        else:
            self.terms[name] = lead.term.number
        assert kept.version is not None
        found = self.reports[name].found
        self.reports[name] = serving(kept.version, found=found, order=kept.order)

    def deliver_all(self, lead: Lead) -> None:
        while lead.sent:
            self.deliver(lead)


def test_late_grant_after_the_next_terms_is_ignored() -> None:
    world = World()
    old = world.begin()
    old.step(world.reports)
    new = world.begin()
    # The old coordinator has looked for a later term less than a second ago, and repeats its grants.
    old.step(world.reports)
    count = len(old.sent)
    assert count == 2 * len(NAMES)
    new.step(world.reports)
    world.deliver_all(new)
    world.deliver_all(old)
    assert world.ignored_count == count
    assert world.versions == {2}


def test_late_grant_before_the_next_terms_is_replaced() -> None:
    world = World()
    old = world.begin()
    old.step(world.reports)
    new = world.begin()
    new.coordinator.operate(lambda state: aborted(state, MODEL, "bad", 0))
    world.deliver_all(old)
    assert world.versions == {2}
    new.step(world.reports)
    world.deliver_all(new)
    assert world.versions == {1}


EVENTS = st.tuples(
    st.sampled_from(["begin", "step", "step", "deliver", "deliver", "drop", "abort", "wait"]),
    st.integers(0, 5),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENTS, max_size=60))
def test_no_late_grant_undoes_one_of_a_later_term(events: list[tuple[str, int]]) -> None:
    world = World()
    world.begin()
    for event, number in events:
        lead = world.leads[number % len(world.leads)]
        if event == "begin":
            world.begin()
        elif event == "step":
            lead.step(world.reports)
        elif event == "deliver" and lead.sent:
            world.deliver(lead, -(number % 2))
        elif event == "drop":
            world.drop()
        elif event == "abort":
            with suppress(OSError, MillpondError):
                lead.coordinator.operate(lambda state: aborted(state, MODEL, "bad", 0))
        elif event == "wait":
            world.clock.advance(number / 4)
    newest = world.begin()
    for lead in [*world.leads, newest]:
        newest.step(world.reports)
        world.deliver_all(newest)
        world.deliver_all(lead)
    newest.step(world.reports)
    world.deliver_all(newest)
    state = newest.coordinator.state.models[MODEL]
    assert world.versions == {state.stable if state.rollout is None else state.rollout.version}
