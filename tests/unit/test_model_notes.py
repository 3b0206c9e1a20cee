import pytest

from serving.base.errors import StatusCode
from serving.core.blocked_versions import BlockedBy, BlockedVersion
from serving.core.servable import (
    AVAILABLE,
    END,
    LOADING,
    START,
    UNLOADING,
    Health,
    LoadStage,
    ServableId,
    ServableState,
    ServableStatus,
)
from serving.manager.model_notes import ModelNotes, NotePublisher, model_notes
from serving.source.notes import Note
from tests.unit.fakes.servables import FakeServingMap

FAILED = Health(StatusCode.DATA_LOSS, "bad checksum")
EMPTY = Note.of("no_version_in_base_path", "info")


def status(version: int, state: ServableState, **fields: object) -> ServableStatus:
    return ServableStatus(id=ServableId("m", version), state=state, **fields)  # type: ignore[arg-type]


def test_notes_of_answering_model_have_no_reason() -> None:
    assert model_notes([status(1, AVAILABLE)], []) == ModelNotes()


def test_notes_of_loading_first_version_name_stage() -> None:
    notes = model_notes([status(3, LOADING, stage=LoadStage.RESTORE)], [])
    reason = "version 3 is loading, stage restore"
    assert notes == ModelNotes(
        reason=reason, is_awaited=True, version_reasons={3: reason}, awaited_versions=(3,)
    )


def test_notes_await_no_version_beside_answering_one() -> None:
    notes = model_notes([status(2, AVAILABLE), status(3, LOADING)], [])
    assert (notes.reason, notes.is_awaited, notes.awaited_versions) == ("", False, ())
    assert notes.version_reasons == {3: "version 3 is loading"}


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (END, "version 3 failed: bad checksum"),
        (START, "version 3 failed and is tried again: bad checksum"),
    ],
)
def test_notes_of_failed_version_have_its_error(state: ServableState, reason: str) -> None:
    notes = model_notes([status(3, state, health=FAILED)], [])
    assert (notes.reason, notes.is_awaited) == (reason, False)


@pytest.mark.parametrize(
    ("stage", "where"),
    [(None, "stage wait: it waits for memory"), (LoadStage.RESTORE, "stage restore")],
)
def test_load_that_is_given_room_is_awaited(stage: LoadStage | None, where: str) -> None:
    health = Health(StatusCode.RESOURCE_EXHAUSTED, "waits for memory")
    coming = status(3, LOADING, health=health, is_given_room=True, stage=stage)
    notes = model_notes([status(2, UNLOADING), coming], [])
    assert (notes.reason, notes.is_awaited) == (f"version 3 is loading, {where}", True)
    assert notes.awaited_versions == (3,)


def test_notes_of_a_cancelled_load_are_of_no_failure() -> None:
    health = Health(StatusCode.CANCELLED, "it is no longer aspired")
    reason = model_notes([status(3, END, health=health)], []).reason
    assert reason == "version 3 was not loaded: it is no longer aspired"


def test_model_notes_of_an_unloaded_version_name_it() -> None:
    assert model_notes([status(3, END)], []).reason == "version 3 was unloaded"
    assert model_notes([status(3, UNLOADING)], []).reason == "version 3 is being unloaded"


@pytest.mark.parametrize(
    ("note", "reason", "is_awaited"),
    [
        (EMPTY, "base path holds no version directory", False),
        (
            Note.of("base_path_unreadable", reason="Permission denied"),
            "base path cannot be read: Permission denied",
            False,
        ),
        (
            Note.of("version_incomplete", version=3, reason="variables.index is missing"),
            "version 3 is being copied: variables.index is missing",
            False,
        ),
        (
            Note.of("version_settling", "info", version=3),
            "version 3 is loading, stage settle: its files changed just now",
            True,
        ),
    ],
)
def test_model_notes_of_a_base_path(note: Note, reason: str, is_awaited: bool) -> None:
    notes = model_notes([], [note])
    assert (notes.reason, notes.is_awaited) == (reason, is_awaited)


def test_model_notes_await_the_first_look() -> None:
    notes = model_notes([], None)
    assert notes == ModelNotes(reason="its base path has not been read yet", is_awaited=True)


def test_model_notes_await_a_version_on_its_way() -> None:
    notes = model_notes([], [], [2, 3])
    assert (notes.is_awaited, notes.awaited_versions) == (True, (2, 3))
    assert notes.reason == "version 3 is loading, stage wait"


def test_model_notes_await_no_version_that_has_ended() -> None:
    assert not model_notes([status(3, END, health=FAILED)], [], [3]).is_awaited


class Published:
    """A publisher and the map that it writes to."""

    def __init__(self) -> None:
        self.map = FakeServingMap()
        self.statuses: dict[str, tuple[ServableStatus, ...]] = {}
        self.publisher = NotePublisher(self.map, self._versions)

    def _versions(self, name: str) -> tuple[ServableStatus, ...]:
        return self.statuses.get(name, ())

    def reason(self) -> object:
        return self.map.notes["m"]["reason"]


def test_publisher_follows_source_states_and_config() -> None:
    fixture = Published()
    publisher = fixture.publisher
    publisher.set_models(["m"])
    assert fixture.reason() == "its base path has not been read yet"
    publisher.set_source_notes("m", [EMPTY])
    assert fixture.reason() == "base path holds no version directory"
    publisher.set_source_notes("m", [], [1])
    assert fixture.reason() == "version 1 is loading, stage wait"
    fixture.statuses["m"] = (status(1, LOADING),)
    publisher.on_status(fixture.statuses["m"][0])
    assert fixture.reason() == "version 1 is loading"
    publisher.set_models([])
    assert fixture.reason() == ""


def test_note_publisher_publishes_nothing_twice() -> None:
    fixture = Published()
    fixture.publisher.set_models(["m"])
    fixture.map.notes.clear()
    fixture.publisher.set_models(["m"])
    assert fixture.map.notes == {}


def test_note_publisher_ignores_a_model_that_is_gone() -> None:
    fixture = Published()
    fixture.publisher.on_status(status(1, END, health=FAILED))
    assert fixture.map.notes == {}


CRASHED = BlockedVersion(
    by=BlockedBy.CRASH, reason="it died", since_wall_ns=1, not_before_wall_ns=3_661_000_000_000
)
ONLY_BLOCKED = Note.of("only_blocked_versions_found", versions=(2,))


def test_model_of_crashed_version_is_refused() -> None:
    notes = model_notes([], [ONLY_BLOCKED], crashed={2: CRASHED})
    reason = "version 2 is blocked (it died), and is tried again from 01:01:01Z on"
    assert notes == ModelNotes(reason=reason, is_refused=True, version_reasons={2: reason})


def test_model_is_not_refused_during_next_try() -> None:
    notes = model_notes([status(2, LOADING)], [ONLY_BLOCKED], crashed={2: CRASHED})
    assert (notes.is_refused, notes.is_awaited) == (False, True)


def test_model_with_predecessor_is_not_refused() -> None:
    notes = model_notes([status(1, AVAILABLE)], [], crashed={2: CRASHED})
    assert not notes.is_refused
    assert notes.version_reasons.keys() == {2}


def test_publisher_reports_refused_models() -> None:
    changes: list[None] = []
    published = FakeServingMap()
    publisher = NotePublisher(published, lambda name: (), {"m": {2: CRASHED}})
    publisher.add_refused_listener(lambda: changes.append(None))
    publisher.set_models(["m"])
    assert publisher.refused == frozenset()
    publisher.set_source_notes("m", [ONLY_BLOCKED])
    assert publisher.refused == {"m"}
    assert len(changes) == 1
    publisher.set_source_notes("m", [], [2])
    assert publisher.refused == frozenset()
    assert len(changes) == 2
