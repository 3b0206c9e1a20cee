"""The table of `gpu`: each figure of the CPUs beside that of the accelerator."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from loadtest.drive.accelerated_pair import ACCELERATOR, CPU
from loadtest.measure.accelerator_dense import NOT_AUTOTUNED, SERVERS, in_flight_of
from loadtest.measure.accelerator_parts import DIFFERENCE_MAX
from loadtest.report.tables import number

Part = Mapping[str, Any]

_Row = tuple[str, ...]
"""The figure's name, the CPUs' value, the accelerator's, and a remark."""


def gpu_table(parts: Mapping[str, Part]) -> Table:
    """Makes the table of all parts; a part that failed has one row with its error."""
    table = Table("", "CPU", "accelerator", "", title="side by side")
    for name, part in parts.items():
        rows = (
            [(name, "failed", "failed", part["failed"])] if "failed" in part else _ROWS[name](part)
        )
        for row in rows:
            table.add_row(*row)
        table.add_section()
    return table


def fault_count(part: Part) -> int:
    """The number of faults of a part: lost or wrong requests, late rollbacks, memory that did not come back,
    differences, what was skipped, and its failure.
    """
    if "failed" in part:
        return 1
    faults = ("errors", "wrong_answers", "late_count", "memory_bytes_left")
    found = sum(int(part.get(key, 0)) for key in faults)
    found += len(part.get("skipped", ()))
    # NaN is not at most anything.
    return found + sum(not difference <= DIFFERENCE_MAX for difference in _differences(part))


def _differences(part: Part) -> Iterator[float]:
    yield from (value for key, value in part.items() if key.startswith("difference_"))
    yield from (model["difference_max"] for model in part.get("models", {}).values())


def _equality(part: Part) -> Iterator[_Row]:
    for other in ("cpu", "reference"):
        value = part[f"difference_to_{other}_max"]
        yield f"largest difference to the {other}", "", f"{value:.1e}", ""


def _alone(part: Part) -> Iterator[_Row]:
    for rows, shown in part["rows"].items():
        values = (number(shown[name]["p50_ms"]) for name in (CPU, ACCELERATOR))
        yield f"{rows} rows alone, p50 ms", *values, ""


def _rates(part: Part) -> Iterator[_Row]:
    for rows, shown in part["rows"].items():
        yield _rate(f"{rows} rows, requests/s", shown, f"{shown[CPU]['in_flight']} in flight")
        yield f"{rows} rows, rows/s", *_pair(shown, "rows_per_second"), ""


def _host_rates(part: Part) -> Iterator[_Row]:
    for rows, shown in part["rows"].items():
        rate = f"{shown['requests_per_second']:,.0f}"
        yield f"{rows} rows, tables in the server's memory, requests/s", "", rate, ""


def _replicas(part: Part) -> Iterator[_Row]:
    for rows, all_devices in part["all_devices"].items():
        one, many = (
            shown["requests_per_second"] for shown in (part["one_device"][rows], all_devices)
        )
        title = f"{rows} rows, {len(all_devices['runs_by_device'])} devices, requests/s"
        yield title, "", f"{many:,.0f}", f"{many / one:.2f} times one device's {one:,.0f}"


def _tail(part: Part) -> Iterator[_Row]:
    for name in ("one", "two"):
        for swap in part.get(name, {}).get("each_swap", ()):
            ratios = (number(swap[f"ratio_{key}"]) for key in ("p99", "p999"))
            remark = f"{number(swap['p99_ms'])} and {number(swap['p999_ms'])} ms"
            title = f"swap to version {swap['version']}, {name} graph{'s' * (name == 'two')}"
            yield f"{title}, p99 and p999 over steady", "", " ".join(ratios), remark
        if name in part:
            times = _median(part[name]["uploads"], "upload_ms")
            yield f"upload, ms, {name} graph{'s' * (name == 'two')}", "", times, ""
    yield "lost / wrong", "", f"{part['errors']} / {part['wrong_answers']}", ""


def _swap(part: Part) -> Iterator[_Row]:
    for percentile in ("p99", "p999"):
        key = f"ratio_{percentile}_swap_over_steady"
        values = (number(part[name][key]) for name in (CPU, ACCELERATOR))
        yield f"{percentile} in swaps over steady", *values, ""
    yield "load, requests/s", *_pair(part, "rate_per_second"), "half of 16 in flight"
    lost = (
        f"{part[name]['errors']} / {part[name]['wrong_answers']}" for name in (CPU, ACCELERATOR)
    )
    yield "lost / wrong", *lost, ""


def _rollback(part: Part) -> Iterator[_Row]:
    uploads = ", ".join(f"{ms:g}" for ms in part["upload_ms"].values())
    yield "upload of each version, ms", "", uploads, ""
    compiled = ", ".join(f"{seconds:g}" for seconds in part["compile_seconds"])
    yield "stage compile of each version, s", "", compiled, ""
    yield (
        "rollback, ms to the first answer",
        "",
        f"{part['seen_ms']:g}",
        f"{part['late_count']} late",
    )


def _neighbours(part: Part) -> Iterator[_Row]:
    for key in ("quiet", "busy", "busy_low"):
        values = (number(part[name][key]["p99_ms"]) for name in (CPU, ACCELERATOR))
        ratio = part[ACCELERATOR][key].get("ratio_p99")
        yield f"quiet model's p99 ms, {key}", *values, (ratio and f"{ratio:g} times quiet") or ""


def _dense(part: Part) -> Iterator[_Row]:
    for kind, shown in part["models"].items():
        title = f"{kind} of {part['request_rows']} rows"
        yield from _dense_rates(title, shown)
        compiled = [_compiled(shown, name) for name in (ACCELERATOR, NOT_AUTOTUNED)]
        yield f"{title}, stage compile, s", "", compiled[0], f"not autotuned {compiled[1]}"
        yield f"{title}, largest difference", "", f"{shown['difference_max']:.1e}", ""


def _compiled(shown: Mapping[str, Any], name: str) -> str:
    return f"{shown[name]['compile_seconds']:g}" if name in shown else "-"


def _dense_rates(title: str, shown: Mapping[str, Any]) -> Iterator[_Row]:
    """The rates by the requests in flight; the CPU's at the most that it has in flight."""
    rates = {name: shown[name]["rates"] for name in SERVERS if name in shown}
    shown_of = next((name for name in (ACCELERATOR, NOT_AUTOTUNED) if name in rates), CPU)
    for in_flight in rates[shown_of]:
        few = str(in_flight_of(CPU, int(in_flight)))
        found = {
            name: of_name[few if name == CPU else in_flight]["requests_per_second"]
            for name, of_name in rates.items()
        }
        remarks = []
        if {CPU, ACCELERATOR} <= found.keys():
            remarks.append(f"{found[ACCELERATOR] / found[CPU]:.2f} times")
        if NOT_AUTOTUNED in found:
            remarks.append(f"not autotuned {found[NOT_AUTOTUNED]:,.0f}")
        if CPU in found and few != in_flight:
            remarks.append(f"CPU: {few} in flight")
        both = (f"{found[n]:,.0f}" if n in found else "-" for n in (CPU, ACCELERATOR))
        yield f"{title}, requests/s, {in_flight} in flight", *both, ", ".join(remarks)


def _many(part: Part) -> Iterator[_Row]:
    lost = f"{part['errors']} / {part['wrong_answers']} of {part['request_count']:,}"
    remark = f"{part['removed_in_load']} versions removed in their load"
    yield f"{part['swaps']} swaps, {part['rollbacks']} rollbacks: lost / wrong", "", lost, remark


def _faults(part: Part) -> Iterator[_Row]:
    lost = f"{part['errors']} / {part['wrong_answers']} of {part['request_count']:,}"
    faults = ("killed_in_upload", "removed_in_upload", "failed_uploads", "lost_devices")
    remark = ", ".join(f"{part[key]} {key.replace('_', ' ')}" for key in (*faults, "hung_devices"))
    yield f"{part['swaps']} swaps, {part['rollbacks']} rollbacks: lost / wrong", "", lost, remark
    yield (
        "accelerator's memory that did not come back, bytes",
        "",
        str(part["memory_bytes_left"]),
        "",
    )


def _zipf(part: Part) -> Iterator[_Row]:
    fits = f"{part['fitting_share']:.1%} to the most popular that fit"
    yield (
        f"{part['model_count']} models, requests that found theirs",
        "",
        f"{part['found_share']:.1%}",
        fits,
    )
    remark = f"{part['uploads']} uploads of {part['upload_ms']:g} ms under load"
    back = "" if part["back_ms_p50"] is None else f"{part['back_ms_p50']:g}"
    yield "a model that was away comes back, p50 ms", "", back, remark
    yield "lost / wrong", "", f"{part['errors']} / {part['wrong_answers']}", ""


def _delta(part: Part) -> Iterator[_Row]:
    kinds = ("full", "delta")
    for key, title in (("upload_ms", "upload, ms"), ("uploaded_mb", "uploaded, MB")):
        middles = {kind: _median(part[kind]["uploads"], key) for kind in kinds}
        yield f"swap, {title}", "", middles["delta"], f"all is sent: {middles['full']}"
    for percentile in ("p99", "p999"):
        key = f"ratio_{percentile}_swap_over_steady"
        delta, full = (number(part[kind][key]) for kind in ("delta", "full"))
        yield f"{percentile} in swaps of deltas over steady", "", delta, f"all is sent: {full}"
    yield "lost / wrong", "", f"{part['errors']} / {part['wrong_answers']}", ""


def _median(uploads: Sequence[Mapping[str, float]], key: str) -> str:
    return f"{statistics.median(upload[key] for upload in uploads):g}" if uploads else ""


def _rate(name: str, shown: Mapping[str, Any], remark: str) -> _Row:
    values = [shown[each]["requests_per_second"] for each in (CPU, ACCELERATOR)]
    cpu, accelerator = (f"{value:,.0f}" for value in values)
    return name, cpu, accelerator, f"{values[1] / values[0]:.2f} times, {remark}"


def _pair(shown: Mapping[str, Any], key: str) -> tuple[str, str]:
    return f"{shown[CPU][key]:,.0f}", f"{shown[ACCELERATOR][key]:,.0f}"


_ROWS = {
    "equality": _equality,
    "alone": _alone,
    "rates": _rates,
    "host_rates": _host_rates,
    "replicas": _replicas,
    "tail": _tail,
    "swap": _swap,
    "rollback": _rollback,
    "neighbours": _neighbours,
    "dense": _dense,
    "many": _many,
    "faults": _faults,
    "zipf": _zipf,
    "delta": _delta,
}
