import threading

import pytest

from serving.loading.request_cores import PINNED_CORES_MAX, RequestCores, pin_always
from tests.unit.fakes.servers import FakeGrpcServer


def test_pinning_spans_first_to_last_task():
    server = FakeGrpcServer()
    cores = RequestCores(lambda thread_id: True, core_count=2)
    cores.add_listener(server.pin_request_threads)
    with cores.pinned(threading.get_native_id()):
        assert server.pins == [True]
        with cores.pinned(threading.get_native_id()):
            pass
        assert server.pins == [True]
    assert server.pins == [True, False]


def test_a_task_that_raises_is_over_too():
    server = FakeGrpcServer()
    cores = RequestCores(lambda thread_id: True, core_count=2)
    cores.add_listener(server.pin_request_threads)
    with pytest.raises(KeyError), cores.pinned(threading.get_native_id()):
        raise KeyError
    assert server.pins == [True, False]


def test_large_machines_are_left_to_the_kernel():
    server = FakeGrpcServer()
    cores = RequestCores(lambda thread_id: True, PINNED_CORES_MAX + 1)
    cores.add_listener(server.pin_request_threads)
    with cores.pinned(threading.get_native_id()):
        assert server.pins == []


def test_tasks_of_another_priority_pin_nothing():
    server = FakeGrpcServer()
    # The test's own thread is not idle.
    cores = RequestCores(core_count=2)
    cores.add_listener(server.pin_request_threads)
    with cores.pinned(threading.get_native_id()):
        assert server.pins == []


def test_pinning_outlasts_holding_and_tasks():
    server = FakeGrpcServer()
    cores = RequestCores(lambda thread_id: True, core_count=2)
    cores.add_listener(server.pin_request_threads)
    cores.hold(True)
    with cores.pinned(threading.get_native_id()):
        cores.hold(False)
        assert server.pins == [True]
    assert server.pins == [True, False]


def test_large_machines_are_not_held():
    server = FakeGrpcServer()
    cores = RequestCores(core_count=PINNED_CORES_MAX + 1)
    cores.add_listener(server.pin_request_threads)
    cores.hold(True)
    cores.hold(False)
    assert server.pins == []


def test_pin_always_names_obstacle(capsys: pytest.CaptureFixture[str]):
    pin_always(lambda is_pinned: True)
    assert "request_threads_not_pinned" not in capsys.readouterr().out
    pin_always(lambda is_pinned: False)
    assert "request_threads_not_pinned" in capsys.readouterr().out
