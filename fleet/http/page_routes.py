"""Serves the page of a fleet: its files, some of which are those of a server's live page, and its polls."""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.monitoring.page_routes import PageFile, file_routes, poll_response, read_page_files

PAGE_DIRECTORY = Path(__file__).parent / "page"
PAGE_PATH = "/fleet/page"

SHOWN_SERVERS_MAX = 100
"""The most servers on the page: more than people read, and few enough to be drawn again each second."""

# The files of a server's live page that this page uses too.
_SHARED = ("dom.js", "format.js", "icon.svg", "page.css", "poll.js")

# The order of the rows by state: servers in need of attention come first.
_PLACES = {"lost": 0, "unknown": 1, "draining": 2, "live": 4}
_PLACE_OF_ROLLOUT = 3


def fleet_page_routes(status: Callable[[], Mapping[str, Any]]) -> list[Route]:
    """Makes the routes `GET /`, `GET /static/…` and the poll. Reads all files now, and never again."""

    # Not async, so that Starlette runs it on a thread: the status of 10,000 servers takes tens of milliseconds.
    def poll(request: Request) -> Response:
        del request
        return poll_response(page_document(status()))

    return [*file_routes(fleet_page_files()), Route(PAGE_PATH, poll, methods=["GET"])]


def fleet_page_files() -> Mapping[str, PageFile]:
    """The page's files by their names below `static/`."""
    shared = read_page_files()
    return {name: shared[name] for name in _SHARED} | dict(read_page_files(PAGE_DIRECTORY))


def page_document(status: Mapping[str, Any]) -> dict[str, Any]:
    """The status for the page, with at most SHOWN_SERVERS_MAX servers. Pure.

    Servers in need of attention come first, then those of a rollout, then the others by name.
    """
    touched: set[str] = set()
    for model in status["models"].values():
        rollout = model["rollout"] or {"members": (), "setbacks": ()}
        touched.update(model["loading"], rollout["members"], rollout["setbacks"])
    rows = sorted(
        status["servers"],
        key=lambda row: min(
            _PLACES[row["state"]], _PLACE_OF_ROLLOUT if row["name"] in touched else 4
        ),
    )
    return {
        "models": {name: _model(model) for name, model in status["models"].items()},
        "problems": [*status.get("problems", ())],
        "server_count": len(rows),
        "server_states": dict(Counter(row["state"] for row in rows)),
        "servers": rows[:SHOWN_SERVERS_MAX],
    }


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    """A model for the page. Leaves out the members' names, because the rows of servers show their versions."""
    rollout = model["rollout"] and {**model["rollout"]}
    if rollout:
        del rollout["members"]
        rollout["setback_count"] = len(rollout["setbacks"])
        rollout["setbacks"] = rollout["setbacks"][:SHOWN_SERVERS_MAX]
        rollout["causes"] = {name: rollout["causes"][name] for name in rollout["setbacks"]}
    shown = {key: model[key][:SHOWN_SERVERS_MAX] for key in ("without_files", "ignored_by")}
    return {**model, **shown, "rollout": rollout, "loading": len(model["loading"])}
