from collections.abc import Mapping
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from serving.base.errors import Cancelled, DoesNotFitBeside, FitsNowhere, ResourceExhausted
from serving.core.servable import ServableId
from serving.data_plane.servables import ArenaRemains
from serving.loading.arenas import Arenas, MemoryLimits, report_remains
from serving.manager.control_thread import Inbox
from serving.manager.version_tasks import VersionTasks
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.data_plane import FakePlane, FakeSavedModelLoad, FakeSlabPool
from tests.unit.fakes.loads import FakeLoader
from tests.unit.fakes.servables import FakeServable
from tests.unit.fakes.threads import ManualExecutor

ID = ServableId("m", 7)
MB = 1_000_000


def load_of(parameter_bytes: int, owner: str = "m", /, **tables: int) -> FakeSavedModelLoad:
    plane = FakePlane()
    plane.parameter_bytes = parameter_bytes
    load = FakeSavedModelLoad(plane, ServableId(owner, 7))
    load.tables = tables
    return load


def arenas(pool: FakeSlabPool, *, limit: int = 0, available: int = 1_000 * MB) -> Arenas:
    return Arenas(pool, MemoryLimits(headroom_bytes=MB, limit_bytes=limit), lambda: available)


def test_arenas_slab_fits_parameters_and_headroom() -> None:
    pool, load = FakeSlabPool(), load_of(500 * MB)
    arenas(pool).take(ID, load)
    assert load.headroom_bytes == MB
    assert pool.used_bytes == 501 * MB


def test_arenas_resident_spare_slab_takes_no_memory() -> None:
    pool = FakeSlabPool(resident_bytes=500 * MB)
    arenas(pool, available=0).take(ID, load_of(500 * MB))
    assert pool.used_bytes == 501 * MB


def test_arenas_let_loads_use_the_tables_of_the_pool() -> None:
    pool, load = FakeSlabPool(), load_of(500 * MB)
    arenas(pool).take(ID, load)
    assert load.table_pools == [pool]


def test_arenas_limit_counts_shared_tables_once() -> None:
    memory = arenas(FakeSlabPool(), limit=600 * MB)
    memory.take(ID, load_of(500 * MB, t=401 * MB))
    memory.take(ServableId("m", 8), load_of(500 * MB, t=401 * MB))
    with pytest.raises(ResourceExhausted):
        memory.take(ServableId("m", 9), load_of(2 * MB))


def test_arenas_shared_table_outlives_first_version() -> None:
    pool = FakeSlabPool()
    memory = arenas(pool, limit=600 * MB)
    first = load_of(500 * MB, t=401 * MB)
    memory.take(ID, first)
    memory.take(ServableId("m", 8), load_of(500 * MB, t=401 * MB))
    pool.release_tables(first)
    memory.unloaded(ID)
    with pytest.raises(DoesNotFitBeside, match=r"the loaded versions have 500\.0 MB"):
        memory.take(ServableId("m", 9), load_of(101 * MB))


def test_arenas_limit_counts_a_table_from_standby() -> None:
    pool = FakeSlabPool()
    memory = arenas(pool, limit=600 * MB)
    first = load_of(401 * MB, t=400 * MB)
    memory.take(ID, first)
    pool.release_tables(first)
    memory.unloaded(ID)
    memory.take(ServableId("n", 1), load_of(300 * MB))
    with pytest.raises(ResourceExhausted, match=r"m/8 needs 401\.0 MB") as raised:
        memory.take(ServableId("m", 8), load_of(401 * MB, t=400 * MB))
    assert type(raised.value) is ResourceExhausted


@pytest.mark.parametrize("other", ["m", "n"])
def test_arenas_fit_alone_with_tables(other: str) -> None:
    memory = arenas(FakeSlabPool(), limit=1_000 * MB)
    memory.take(ServableId(other, 6), load_of(500 * MB, t1=400 * MB))
    with pytest.raises(ResourceExhausted) as raised:
        memory.take(ID, load_of(501 * MB, t2=400 * MB))
    assert (type(raised.value) is DoesNotFitBeside) == (other == "m")


TABLE_BYTES = {"a": 3, "b": 5, "c": 11}
# Each unloads its version if that is loaded. If not, it loads it with these private bytes and tables.
STEPS = st.lists(
    st.tuples(
        st.builds(ServableId, st.sampled_from("mn"), st.integers(1, 3)),
        st.integers(0, 20),
        st.sets(st.sampled_from("abc")),
        st.booleans(),
    ),
    max_size=30,
)


@given(STEPS, st.integers(1, 80))
def test_arenas_hold_private_bytes_and_tables_once(
    steps: list[tuple[ServableId, int, set[str], bool]], limit: int
) -> None:
    pool = FakeSlabPool()
    memory = arenas(pool, limit=limit)
    loaded: dict[ServableId, tuple[int, FakeSavedModelLoad]] = {}
    for servable_id, private_bytes, names, fails_later in steps:
        if servable_id in loaded:
            pool.release_tables(loaded.pop(servable_id)[1])
            memory.unloaded(servable_id)
        else:
            # Models share no table.
            tables = {servable_id.name + name: TABLE_BYTES[name] for name in names}
            load = load_of(private_bytes + sum(tables.values()), **tables)
            with_it = {**loaded, servable_id: (private_bytes, load)}
            fits = bytes_of(with_it) <= limit
            with nullcontext() if fits else pytest.raises(ResourceExhausted):
                memory.take(servable_id, load)
            if fits and not fails_later:
                memory.loaded(servable_id, FakeServable(servable_id), serving_count=1)
                loaded = with_it
            else:
                pool.release_tables(load)
                memory.failed(servable_id)
        assert_left(memory, limit - bytes_of(loaded))


def test_arenas_room_of_a_model_is_for_no_other() -> None:
    memory = arenas(FakeSlabPool(), limit=80 * MB)
    for name in "mn":
        load(memory, ServableId(name, 1), 32 * MB)
    memory.unloaded(ServableId("n", 1), makes_room=True)
    with pytest.raises(DoesNotFitBeside, match=r"have 32\.0 MB and 32\.0 MB are for") as raised:
        memory.take(ServableId("m", 2), load_of(32 * MB))
    assert raised.value.missing_bytes == 16 * MB
    memory.failed(ServableId("m", 2))
    load(memory, ServableId("n", 2), 32 * MB)
    memory.unloaded(ServableId("m", 1))
    load(memory, ServableId("m", 2), 32 * MB)


@pytest.mark.parametrize("end", ["loaded", "forget", "end_room"])
def test_arenas_room_ends(end: str) -> None:
    memory = arenas(FakeSlabPool(), limit=80)
    load(memory, ServableId("n", 1), 64)
    memory.unloaded(ServableId("n", 1), makes_room=True)
    if end == "loaded":
        load(memory, ServableId("n", 2), 1)
    else:
        getattr(memory, end)("n")
    load(memory, ServableId("m", 1), 64)


def test_arenas_room_lasts_if_the_load_fails() -> None:
    memory = arenas(FakeSlabPool(), limit=80)
    load(memory, ServableId("n", 1), 64)
    memory.unloaded(ServableId("n", 1), makes_room=True)
    memory.take(ServableId("n", 2), load_of(60))
    memory.failed(ServableId("n", 2))
    with pytest.raises(ResourceExhausted):
        memory.take(ServableId("m", 1), load_of(32))
    # Version 1 comes back.
    load(memory, ServableId("n", 1), 64)


def test_arenas_undone_load_leaves_the_room_again() -> None:
    memory, inbox = arenas(FakeSlabPool(), limit=80), Inbox(FakeClock())
    load(memory, ServableId("n", 1), 64)
    memory.unloaded(ServableId("n", 1), makes_room=True)
    loaders = ManualExecutor()
    tasks = VersionTasks(
        loader=FakeLoader(),
        loaders=loaders,
        unloaders=ManualExecutor(),
        version_memory=memory,
        inbox=inbox,
        clock=FakeClock(),
    )
    load(memory, ServableId("n", 2), 64)
    tasks.discard(ServableId("n", 2), FakeServable(ServableId("n", 2)), Cancelled("withdrawn"))
    loaders.run_all()
    with pytest.raises(ResourceExhausted):
        memory.take(ServableId("m", 1), load_of(32))


def test_arenas_version_beside_another_leaves_no_room() -> None:
    memory = arenas(FakeSlabPool(), limit=80)
    for version in (1, 2):
        load(memory, ServableId("n", version), 32)
    memory.unloaded(ServableId("n", 1), makes_room=True)
    load(memory, ServableId("m", 1), 48)


def test_arenas_room_is_kept_of_the_machines_memory() -> None:
    # Far more than the spare memory that the pool of tests reports.
    memory = arenas(FakeSlabPool(), available=100 * MB)
    load(memory, ServableId("n", 1), 64 * MB)
    memory.unloaded(ServableId("n", 1), makes_room=True)
    with pytest.raises(ResourceExhausted):
        memory.take(ServableId("m", 1), load_of(64 * MB))
    memory.failed(ServableId("m", 1))
    load(memory, ServableId("n", 2), 64 * MB)


@pytest.mark.parametrize("owner", ["n", "o"])
def test_arenas_room_has_the_tables_on_standby(owner: str) -> None:
    """The tables of a model that unloaded a version are in memory, and the room takes no more for them. The tables
    of another model are not for it.
    """
    pool = FakeSlabPool()
    memory = arenas(pool, available=100 * MB)
    first = load_of(64 * MB, owner, t=60 * MB)
    memory.take(ServableId("n", 1), first)
    memory.loaded(ServableId("n", 1), FakeServable(ServableId("n", 1)), serving_count=1)
    pool.release_tables(first)
    memory.unloaded(ServableId("n", 1), makes_room=True)
    fits = owner == "n"
    with nullcontext() if fits else pytest.raises(ResourceExhausted):
        memory.take(ServableId("m", 1), load_of(96 * MB))


def load(memory: Arenas, servable_id: ServableId, parameter_bytes: int) -> None:
    memory.take(servable_id, load_of(parameter_bytes))
    memory.loaded(servable_id, FakeServable(servable_id), serving_count=1)


@given(st.lists(st.tuples(st.sampled_from("mno"), st.integers(1, 40)), max_size=40))
def test_arenas_load_fits_where_a_version_made_room(steps: list[tuple[str, int]]) -> None:
    memory = arenas(FakeSlabPool(), limit=80)
    sizes: dict[str, int] = {}
    rooms: dict[str, int] = {}
    for number, (name, size) in enumerate(steps, start=1):
        servable_id = ServableId(name, 1)
        if name in sizes and number % 2:
            memory.unloaded(servable_id, makes_room=True)
            rooms[name] = sizes.pop(name)
        elif name not in sizes:
            fits = sum({**sizes, **rooms, name: size}.values()) <= 80
            assert fits or size > rooms.get(name, 0)
            with nullcontext() if fits else pytest.raises(ResourceExhausted):
                load(memory, servable_id, size)
            if fits:
                sizes[name] = size
                rooms.pop(name, None)
            else:
                memory.failed(servable_id)


def assert_left(memory: Arenas, byte_count: int) -> None:
    """The limit leaves exactly so many bytes."""
    with pytest.raises(ResourceExhausted):
        memory.take(ServableId("probe", 1), load_of(byte_count + 1))
    memory.take(ServableId("probe", 1), load_of(byte_count))
    memory.failed(ServableId("probe", 1))


def bytes_of(loaded: Mapping[ServableId, tuple[int, FakeSavedModelLoad]]) -> int:
    tables = {name: size for _, load in loaded.values() for name, size in load.tables.items()}
    return sum(private_bytes for private_bytes, _ in loaded.values()) + sum(tables.values())


def test_arenas_need_memory_for_replaced_rows() -> None:
    load = load_of(500 * MB)
    load.log_bytes = 101 * MB
    with pytest.raises(ResourceExhausted, match=r"601\.0 MB with"):
        arenas(FakeSlabPool(), available=600 * MB).take(ID, load)


def test_arenas_too_large_version_is_refused() -> None:
    with pytest.raises(
        ResourceExhausted, match=r"500.0 MB of memory, 400.0 MB with .* 300.0 MB are"
    ):
        arenas(FakeSlabPool(resident_bytes=100 * MB), available=300 * MB).take(
            ID, load_of(500 * MB)
        )


def test_arenas_version_needs_graph_and_warm_up_memory() -> None:
    memory = arenas(FakeSlabPool(), available=600 * MB)
    memory.take(ID, load_of(400 * MB), graph_bytes=50 * MB)
    memory.warmed_up(ID, 100 * MB)
    memory.failed(ID)
    memory.take(ID, load_of(450 * MB), graph_bytes=50 * MB)
    memory.failed(ID)
    with pytest.raises(ResourceExhausted, match=r"601\.0 MB with its graph and warm-up"):
        memory.take(ID, load_of(451 * MB), graph_bytes=50 * MB)
    memory.forget("m")
    memory.take(ID, load_of(451 * MB), graph_bytes=50 * MB)


def test_arenas_limit_covers_all_loaded_versions() -> None:
    pool = FakeSlabPool()
    memory = arenas(pool, limit=1_000 * MB)
    memory.take(ID, load_of(600 * MB))
    with pytest.raises(ResourceExhausted, match=r"--model_memory_limit_bytes is 1,000\.0 MB"):
        memory.take(ServableId("m", 8), load_of(401 * MB))
    assert pool.used_bytes == 601 * MB
    memory.take(ServableId("m", 8), load_of(400 * MB))


@pytest.mark.parametrize("end", ["unloaded", "failed"])
def test_arenas_unloaded_version_leaves_limit(end: str) -> None:
    memory = arenas(FakeSlabPool(), limit=1_000 * MB)
    memory.take(ID, load_of(600 * MB))
    if end == "unloaded":
        memory.loaded(ID, FakeServable(ID), serving_count=1)
    getattr(memory, end)(ID)
    memory.take(ServableId("m", 8), load_of(1_000 * MB))


@pytest.mark.parametrize(
    ("other", "expected"),
    [(ServableId("m", 6), DoesNotFitBeside), (ServableId("n", 1), ResourceExhausted)],
    ids=["beside its predecessor", "beside another model"],
)
def test_arenas_check_fit_without_predecessor(other: ServableId, expected: type[Exception]) -> None:
    memory = arenas(FakeSlabPool(), limit=1_000 * MB)
    memory.take(other, load_of(600 * MB))
    with pytest.raises(ResourceExhausted) as raised:
        memory.take(ID, load_of(600 * MB))
    assert type(raised.value) is expected


def test_arenas_refusal_has_the_bytes_that_are_missing() -> None:
    memory = arenas(FakeSlabPool(), limit=1_000 * MB)
    memory.take(ServableId("m", 6), load_of(600 * MB))
    with pytest.raises(DoesNotFitBeside) as raised:
        memory.take(ID, load_of(500 * MB))
    assert raised.value.missing_bytes == 100 * MB


def test_arenas_version_that_never_fits() -> None:
    memory = arenas(FakeSlabPool(), limit=1_000 * MB)
    memory.take(ServableId("m", 6), load_of(600 * MB))
    with pytest.raises(FitsNowhere, match=r"needs 1,001\.0 MB.* is 1,000\.0 MB for all") as raised:
        memory.take(ID, load_of(1_001 * MB))
    assert not raised.value.is_transient


def test_arenas_forget_spares_of_versionless_model() -> None:
    pool = FakeSlabPool()
    arenas(pool).forget("m")
    assert pool.forgotten == ["m"]


def test_arenas_overgrown_slab_is_logged_with_remedy() -> None:
    servable = FakeServable(ID)
    servable.arena_overflow_block_count = 3
    with capture_logs() as logs:
        arenas(FakeSlabPool()).loaded(ID, servable, serving_count=1)
    assert [(log["event"], log["block_count"]) for log in logs] == [("arena_overflowed", 3)]
    assert "--arena=false" in logs[0]["remedy"]
    assert "init op" in logs[0]["remedy"]


def test_arenas_fitting_version_logs_nothing() -> None:
    pool, servable = FakeSlabPool(), FakeServable(ID)
    with capture_logs() as logs:
        arenas(pool).loaded(ID, servable, serving_count=1)
    assert logs == []
    assert pool.expected == {"m": servable}


def test_arenas_parallel_loads_count_memory_once() -> None:
    pool = FakeSlabPool()
    memory = arenas(pool, available=800 * MB)
    memory.take(ID, load_of(500 * MB))
    with pytest.raises(ResourceExhausted, match=r"300\.0 MB are available"):
        memory.take(ServableId("other", 1), load_of(500 * MB))


@pytest.mark.parametrize("end", ["loaded", "failed"])
def test_arenas_ended_load_reserves_nothing(end: str) -> None:
    memory = arenas(FakeSlabPool(), available=800 * MB)
    memory.take(ID, load_of(500 * MB))
    if end == "loaded":
        memory.loaded(ID, FakeServable(ID), serving_count=1)
    else:
        memory.failed(ID)
    memory.take(ServableId("other", 1), load_of(500 * MB))


def test_arenas_refill_leaves_memory_of_loads() -> None:
    pool = FakeSlabPool()
    memory = arenas(pool, available=800 * MB)
    memory.take(ID, load_of(500 * MB))
    memory.take(ServableId("other", 1), load_of(200 * MB))
    memory.loaded(ID, FakeServable(ID), serving_count=2)
    assert pool.rooms == [600 * MB]
    assert pool.serving_counts == {"m": 2}


def test_arenas_spare_memory_without_room_is_logged() -> None:
    pool, servable = FakeSlabPool(missing_bytes=101 * MB), FakeServable(ID)
    with capture_logs() as logs:
        arenas(pool, available=100 * MB).loaded(ID, servable, serving_count=1)
    assert [log["event"] for log in logs] == ["spare_memory_not_kept"]
    # The spare memory of other models may be of use.
    assert pool.expected == {"m": servable}


def test_arenas_refused_spare_memory_is_logged_once() -> None:
    pool = FakeSlabPool(reservation_refusal="no address range of 8 GiB is free")
    memory = arenas(pool)
    with capture_logs() as logs:
        memory.failed(ID)
        memory.failed(ID)
        pool.reservation_refusal = ""
        memory.failed(ID)
    (log,) = logs
    assert log["event"] == "spare_memory_refused"
    assert log["reason"] == "no address range of 8 GiB is free"


@pytest.mark.parametrize("end", ["failed", "unloaded", "forget"])
def test_arenas_returned_memory_leaves_room_to_refill(end: str) -> None:
    pool = FakeSlabPool()
    memory = arenas(pool)
    memory.take(ID, load_of(500 * MB))
    getattr(memory, end)(ID.name if end == "forget" else ID)
    assert pool.rooms == [1_000 * MB if end == "failed" else 500 * MB]


def test_remains_beside_the_slab_are_reported_too() -> None:
    with capture_logs() as logs:
        report_remains(ID, ArenaRemains(overflow_block_count=2))
    assert [(log["event"], log["overflow_block_count"]) for log in logs] == [("arena_leaked", 2)]


def test_remains_of_nothing_are_not_reported() -> None:
    with capture_logs() as logs:
        report_remains(ID, ArenaRemains())
    assert logs == []
