from serving.core.cancellation import Cancellation


def test_cancellation_calls_registered_stop() -> None:
    cancellation, stops = Cancellation(), []
    with cancellation.stops_by(lambda: stops.append("stop")):
        assert not cancellation.is_cancelled
        cancellation.cancel()
        assert stops == ["stop"]
    assert cancellation.is_cancelled


def test_cancellation_that_came_before_stops_at_once() -> None:
    cancellation, stops = Cancellation(), []
    cancellation.cancel()
    with cancellation.stops_by(lambda: stops.append("stop")):
        assert stops == ["stop"]


def test_cancellation_after_the_step_calls_nothing() -> None:
    cancellation, stops = Cancellation(), []
    with cancellation.stops_by(lambda: stops.append("stop")):
        pass
    cancellation.cancel()
    assert stops == []


def test_cancellation_reset_forgets_it() -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    cancellation.reset()
    assert not cancellation.is_cancelled


def test_cancellation_stops_what_lies_within_too():
    stops: list[str] = []
    cancellation = Cancellation()
    with cancellation.stops_by(lambda: stops.append("outer")):
        with cancellation.stops_by(lambda: stops.append("inner")):
            pass
        cancellation.cancel()
        assert stops == ["outer"]
        with cancellation.stops_by(lambda: stops.append("inner")):
            cancellation.cancel()
    assert stops == ["outer", "inner", "outer", "inner"]
