"""The batches of versions: none is lost when its version ends."""

from dataclasses import replace

from serving.core.servable import AVAILABLE, END, ServableId, ServableStatus
from serving.loading.batch_records import ENDED_COUNT_MAX, BatchRecords
from tests.unit.fakes.servables import FakeServable, busy_batching

ID = ServableId("m", 1)


def batched(servable_id: ServableId = ID) -> FakeServable:
    servable = FakeServable(servable_id)
    servable.batched = busy_batching()
    return servable


def run_once_more(servable: FakeServable) -> None:
    servable.change_batching(0, figures=replace(servable.batched[0].figures, run_count=4))


def ended(servable_id: ServableId = ID) -> ServableStatus:
    return ServableStatus(id=servable_id, state=END)


def test_loaded_version_has_its_present_figures() -> None:
    records, servable = BatchRecords(), batched()
    records.add(ID, servable)
    run_once_more(servable)
    assert records.of(ID)[0].figures.run_count == 4


def test_version_that_is_not_batched_has_no_figures() -> None:
    records = BatchRecords()
    assert records.of(ID) == ()


def test_ended_version_keeps_its_last_figures() -> None:
    records, servable = BatchRecords(), batched()
    records.add(ID, servable)
    records.on_status(ServableStatus(id=ID, state=AVAILABLE))
    run_once_more(servable)
    servable.is_destroyed = True
    records.on_status(ended())
    servable.batched = []
    assert records.of(ID)[0].figures.run_count == 4


def test_version_loaded_again_begins_at_0() -> None:
    records = BatchRecords()
    records.add(ID, batched())
    records.on_status(ended())
    again = batched()
    again.batched = [replace(again.batched[1])]
    records.add(ID, again)
    assert [state.signature for state in records.of(ID)] == ["whole"]


def test_second_report_of_an_end_changes_nothing() -> None:
    records, servable = BatchRecords(), batched()
    records.add(ID, servable)
    records.on_status(ended())
    servable.batched = []
    records.on_status(ended())
    assert records.of(ID)[0].figures.run_count == 3


def test_records_of_ended_versions_are_limited() -> None:
    records = BatchRecords()
    for version in range(1, ENDED_COUNT_MAX + 3):
        records.add(ServableId("m", version), batched(ServableId("m", version)))
        records.on_status(ended(ServableId("m", version)))
    assert records.of(ServableId("m", 2)) == ()
    assert records.of(ServableId("m", 3)) != ()
