from fleet.lead.candidate import Candidate
from fleet.lead.leadership import Term


class Leading:
    """A leadership that the test decides."""

    def __init__(self) -> None:
        self.number: int | None = 1

    def start(self, port: int) -> None:
        raise AssertionError(port)

    def term(self) -> Term | None:
        number = self.number
        if number is None:
            return None
        return Term(number, None, lambda: True)  # type: ignore[arg-type]

    def leader(self) -> str:
        return ""

    def stop(self) -> None:
        raise AssertionError


class World:
    def __init__(self) -> None:
        self.events: list[str] = []
        self.is_failing = False
        self.leadership = Leading()
        self.candidate = Candidate(self.leadership, self.begin, self.end)

    def begin(self, term: Term) -> None:
        if self.is_failing:
            raise OSError("the API is away")
        self.events.append(f"begin {term.number}")

    def end(self) -> None:
        self.events.append("end")


def test_candidate_begins_one_lead_for_a_term() -> None:
    world = World()
    assert world.candidate.turn()
    assert world.candidate.turn()
    assert world.events == ["begin 1"]


def test_candidate_waits_without_a_term() -> None:
    world = World()
    world.leadership.number = None
    assert not world.candidate.turn()
    assert world.events == []


def test_lost_term_ends_its_lead() -> None:
    world = World()
    world.candidate.turn()
    world.leadership.number = None
    assert not world.candidate.turn()
    assert world.events == ["begin 1", "end"]


def test_new_term_ends_the_lead_of_the_old_one() -> None:
    world = World()
    world.candidate.turn()
    world.leadership.number = 2
    world.candidate.turn()
    assert world.events == ["begin 1", "end", "begin 2"]


def test_failed_takeover_is_tried_again() -> None:
    world = World()
    world.is_failing = True
    assert not world.candidate.turn()
    assert world.candidate.failure == "the API is away"
    world.is_failing = False
    assert world.candidate.turn()
    assert world.candidate.failure == ""
