from serving.loading.reservoirs import Reservoirs
from tests.unit.fakes.requests import FakeReservoir


def reservoirs() -> Reservoirs:
    return Reservoirs(FakeReservoir)


def test_each_model_has_one_reservoir_of_its_own():
    all_of_them = reservoirs()
    a, b = all_of_them.of("a"), all_of_them.of("b")
    assert a is all_of_them.of("a")
    assert a is not b
    assert all_of_them.by_name() == {"a": a, "b": b}


def test_model_that_is_forgotten_begins_anew():
    all_of_them = reservoirs()
    before = all_of_them.of("a")
    all_of_them.forget("a")
    assert all_of_them.by_name() == {}
    assert all_of_them.of("a") is not before


def test_model_that_has_none_is_forgotten_too():
    all_of_them = reservoirs()
    all_of_them.forget("a")
    assert all_of_them.by_name() == {}


def test_reservoirs_are_absent_if_keeping_is_off():
    off = Reservoirs(None)
    assert off.of("a") is None
    assert off.by_name() == {}
