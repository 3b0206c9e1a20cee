"""The events of a coordinator on Ray that its fronts log."""

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'millpond[ray]'")

from fleet.ray.event_list import EVENT_COUNT_MAX, EventList
from tests.unit.fakes.clocks import FakeClock


def kept(events: EventList, boot: str = "", number: int = 0) -> list[tuple[str, str]]:
    return [(row.level, row.name) for row in events.after(boot, number)]


def test_events_of_the_fleet_are_kept_in_turn() -> None:
    events = EventList(FakeClock())
    for method, name in (("info", "fleet_a"), ("warning", "listening"), ("exception", "fleet_b")):
        event = {
            "event": name,
            "missing": {"m": [1, None]},
            "error": ValueError("bad"),
            "exc_info": True,
        }
        assert events.keep(None, method, event) is event
    assert kept(events) == [("info", "fleet_a"), ("error", "fleet_b")]
    first = events.after("", 0)[0]
    assert first.values == {"missing": {"m": [1, None]}, "error": "bad"}
    assert kept(events, first.boot, first.number) == [("error", "fleet_b")]


def test_next_coordinator_begins_with_its_first_event() -> None:
    clock = FakeClock()
    first, second = EventList(clock), EventList(clock)
    for name in ("fleet_a", "fleet_b"):
        first.keep(None, "info", {"event": name})
    second.keep(None, "info", {"event": "fleet_c"})
    last = first.after("", 0)[-1]
    assert kept(second, last.boot, last.number) == [("info", "fleet_c")]


def test_old_events_are_dropped() -> None:
    events = EventList(FakeClock())
    for number in range(EVENT_COUNT_MAX + 1):
        events.keep(None, "info", {"event": f"fleet_{number}"})
    rows = events.after("", 0)
    assert (len(rows), rows[0].name) == (EVENT_COUNT_MAX, "fleet_1")
