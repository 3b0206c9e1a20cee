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


class Led:
    def __init__(self, world: "World", term: Term) -> None:
        if world.is_failing:
            raise OSError("the API is away")
        self.world = world
        self.number = term.number
        world.events.append(f"begin {self.number}")

    def stop(self) -> None:
        self.world.events.append(f"stop {self.number}")


class World:
    def __init__(self) -> None:
        self.events: list[str] = []
        self.is_failing = False
        self.leadership = Leading()
        self.candidate = Candidate(self.leadership, lambda term: Led(self, term))


def test_candidate_begins_one_lead_for_a_term() -> None:
    world = World()
    first = world.candidate.turn()
    assert world.candidate.turn() is first
    assert world.events == ["begin 1"]


def test_candidate_waits_without_a_term() -> None:
    world = World()
    world.leadership.number = None
    assert world.candidate.turn() is None


def test_lost_term_ends_its_lead() -> None:
    world = World()
    world.candidate.turn()
    world.leadership.number = None
    assert world.candidate.turn() is None
    assert world.events == ["begin 1", "stop 1"]


def test_new_term_ends_the_lead_of_the_old_one() -> None:
    world = World()
    world.candidate.turn()
    world.leadership.number = 2
    world.candidate.turn()
    assert world.events == ["begin 1", "stop 1", "begin 2"]


def test_failed_takeover_is_tried_again() -> None:
    world = World()
    world.is_failing = True
    assert world.candidate.turn() is None
    assert world.candidate.failure == "the API is away"
    world.is_failing = False
    assert world.candidate.turn() is not None
    assert world.candidate.failure == ""
