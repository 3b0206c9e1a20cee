"""Serves swaps over HTTP: all of them, one swap, and its trace."""

import json
import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.monitoring.swap_record import record_document, trace_document
from serving.monitoring.swap_timeline import SwapTimeline


def swap_routes(swaps: SwapTimeline) -> list[Route]:
    """Makes `GET /v1/swaps[?model=NAME]`, `GET /v1/swaps/ID` and `GET /v1/swaps/ID/trace`."""

    def list_swaps(request: Request) -> Response:
        model = request.query_params.get("model")
        records = [item for item in swaps.records() if model is None or item.model == model]
        return _json({"swaps": [record_document(record) for record in records]})

    def one_swap(request: Request) -> Response:
        record = swaps.record(request.path_params["id"])
        return _unknown(request) if record is None else _json(record_document(record))

    def trace(request: Request) -> Response:
        record = swaps.record(request.path_params["id"])
        if record is None:
            return _unknown(request)
        # Browsers save the file under this name. Headers are ASCII. Perfetto opens the file.
        name = re.sub(r"[^A-Za-z0-9.-]", "_", record.id)
        headers = {"Content-Disposition": f'attachment; filename="swap-{name}.json"'}
        return _json(trace_document(record), headers=headers)

    return [
        Route("/v1/swaps", list_swaps),
        # An id begins with a model's name, which may hold a slash.
        Route("/v1/swaps/{id:path}/trace", trace),
        Route("/v1/swaps/{id:path}", one_swap),
    ]


def _json(
    document: object, status_code: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(
        json.dumps(document), status_code, headers=headers, media_type="application/json"
    )


def _unknown(request: Request) -> Response:
    return _json({"error": f"no swap {request.path_params['id']!r}; /v1/swaps lists them"}, 404)
