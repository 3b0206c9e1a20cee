import re
from pathlib import Path

from serving.base.protos import get_model_status_pb2
from serving.core.servable import END, TRANSITIONS, ServableId, ServableState


def test_servable_state_numbers_are_those_of_the_wire() -> None:
    wire = dict(get_model_status_pb2.ModelVersionStatus.State.items())
    assert {state.name: int(state) for state in ServableState} == {
        name: number for name, number in wire.items() if name != "UNKNOWN"
    }


def test_transitions_have_a_row_for_each_state() -> None:
    assert set(TRANSITIONS) == set(ServableState)


def test_transitions_lead_from_every_state_to_end() -> None:
    reachable = {state for state in ServableState if END in TRANSITIONS[state]}
    while more := {
        state
        for state in ServableState
        if TRANSITIONS[state] & reachable and state not in reachable
    }:
        reachable |= more
    assert reachable == set(ServableState) - {END}


def test_transitions_never_lead_back() -> None:
    assert all(new > old for old in TRANSITIONS for new in TRANSITIONS[old])


def test_diagram_of_the_design_draws_every_move() -> None:
    text = (Path(__file__).parents[2] / "docs" / "design.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^    (\w+) --> (\w+)$", text, re.MULTILINE)
    moves = [(old.name, new.name) for old in TRANSITIONS for new in TRANSITIONS[old]]
    assert sorted(drawn) == sorted(moves)


def test_servable_ids_of_one_name_sort_by_version() -> None:
    assert max(ServableId("m", 9), ServableId("m", 10)) == ServableId("m", 10)
