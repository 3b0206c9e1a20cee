from dataclasses import replace

from fleet.rollout.reports import ModelReport, ServerReport, Sighting, VersionReport
from fleet.rollout.state import ModelState, Slot
from fleet.rollout.view import ModelView, model_views
from serving.base.clock import NS_PER_SECOND
from serving.core.servable import AVAILABLE, LOADING
from tests.fleet.worlds.fleet import serving

NOW_NS = 100 * NS_PER_SECOND
FOUND = frozenset({1, 2})


def seen(report: ServerReport | None, seconds_ago: int = 0) -> Sighting:
    return Sighting(report, NOW_NS - seconds_ago * NS_PER_SECOND)


def server(*, is_draining: bool = False) -> ServerReport:
    return ServerReport(models={"m": serving(1, found=FOUND)}, is_draining=is_draining)


def view_of(sightings: dict[str, Sighting]) -> ModelView:
    return model_views(sightings, {"m": ModelState()}, 30, NOW_NS)["m"]


def test_server_without_a_report_for_long_is_lost() -> None:
    view = view_of({"a": seen(server(), 31), "b": seen(server(), 29)})
    assert ([*view.lost], [*view.live]) == (["a"], ["b"])
    assert view.fleet_size == 2


def test_view_is_incomplete_before_first_reports() -> None:
    assert not view_of({"a": seen(None, 29)}).is_complete
    assert view_of({"a": seen(None, 31)}).is_complete
    assert view_of({"a": seen(None, 31)}).lost == {"a": None}


def test_draining_server_does_not_count_in_the_fleet() -> None:
    view = view_of({"a": seen(server(is_draining=True)), "b": seen(server())})
    assert (view.draining, view.fleet_size) == ({"a"}, 1)


def test_leaving_server_drains_and_then_has_left() -> None:
    leaving = replace(seen(server()), is_leaving=True)
    silent = replace(seen(server(), 31), is_leaving=True)
    unseen = replace(seen(None), is_leaving=True)
    view = view_of({"a": leaving, "b": seen(server()), "c": silent, "d": unseen})
    assert (view.draining, view.fleet_size, view.lost) == ({"a"}, 1, {})
    assert view.is_complete
    assert not view.is_known("c")


def test_view_of_a_model_that_only_servers_know() -> None:
    views = model_views({"a": seen(server())}, {}, 30, NOW_NS)
    assert [*views["m"].live] == ["a"]


def test_most_served_prefers_the_lower_of_two() -> None:
    reports = {"a": 2, "b": 1, "c": 2, "d": 1, "e": None}
    view = ModelView(
        live={name: ModelReport(default_version=version) for name, version in reports.items()}
    )
    assert view.most_served(()) == 1
    assert view.most_served({1}) == 2
    assert ModelView().most_served(()) is None


def test_found_is_the_union_of_all_disks() -> None:
    view = ModelView(
        live={"a": serving(1, found=frozenset({1})), "b": serving(1, found=frozenset({1, 3}))}
    )
    assert view.found() == {1, 3}


def test_swapping_counts_slots_and_returned_servers() -> None:
    swapping = ModelReport(
        default_version=1,
        versions={1: VersionReport(state=AVAILABLE), 2: VersionReport(state=LOADING)},
    )
    view = ModelView(live={"a": swapping, "b": swapping, "c": serving(1, found=FOUND)})
    # A slot counts for a server that is lost too.
    state = ModelState(loading={"a": Slot(2, 1), "gone": Slot(2, 1)})
    assert view.swapping_count(state) == 3


def test_silent_server_counts_only_for_its_models() -> None:
    silent = replace(seen(None, 31), models=frozenset({"n"}))
    views = model_views({"a": seen(server()), "b": silent}, {"n": ModelState()}, 30, NOW_NS)
    assert ([*views["m"].lost], [*views["n"].lost]) == ([], ["b"])
    waiting = replace(seen(None), models=frozenset({"n"}))
    views = model_views({"a": seen(server()), "b": waiting}, {"n": ModelState()}, 30, NOW_NS)
    assert (views["m"].is_complete, views["n"].is_complete) == (True, False)
