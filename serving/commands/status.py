"""`millpond status`: prints the versions of a server, their states, and the reasons."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from serving.base.clock import NS_PER_SECOND, Clock, SystemClock
from serving.base.errors import NotFound
from serving.base.name_text import listed, printable
from serving.client.operator_calls import coming_versions, is_failed_load
from serving.commands.connection import add_connection, connect
from serving.monitoring.side_text import sides_text, untuned_text

_COLUMNS = ("model", "version", "state", "age", "memory MB", "role", "remark")
_BYTES_PER_MB = 1e6

Models = Mapping[str, Mapping[str, Any]]
"""The models by name, as `Client.describe_models` returns them."""


def run(arguments: Sequence[str], clock: Clock | None = None) -> int:
    """Prints the versions as a table, or as JSON. Raises MillpondError if the server or the model is not found."""
    parsed = make_parser().parse_args(arguments)
    with connect(parsed, is_announced=True) as client:
        described = {"server": parsed.target, **client.describe()}
    models = {model["name"]: model for model in described["models"]}
    if parsed.model is not None:
        models = {parsed.model: _model(models, parsed.model)}
    if parsed.json:
        print(json.dumps({**described, "models": list(models.values())}, indent=2))
        return 0
    now_wall_ns = (clock or SystemClock()).wall_ns()
    # Servers of earlier releases do not send "refused_config".
    refusal = refusal_text(described.get("refused_config"), now_wall_ns)
    print_models(models, now_wall_ns, sys.stdout, [refusal] if refusal else [])
    return 0


def refusal_text(refusal: Mapping[str, Any] | None, now_wall_ns: int) -> str:
    """A line about an edited config file that the server refuses; "" if the server refuses none."""
    if refusal is None:
        return ""
    age = age_text((now_wall_ns - refusal["since_wall_ns"]) / NS_PER_SECOND)
    reason = refusal["reason"].removeprefix(f"{refusal['file']}: ")
    consequence = "the server goes on with the configuration before it"
    return _one_line(f"{refusal['file']}: refused {age} ago, {consequence}: {reason}")


def _model(models: Models, name: str) -> Mapping[str, Any]:
    if name not in models:
        raise NotFound(f"the server has no model {name!r}; models: {listed(sorted(models))}")
    return models[name]


def print_models(
    models: Models, now_wall_ns: int, stream: TextIO, server_remarks: Sequence[str] = ()
) -> None:
    """Prints a row for each version, and below the rows a line for each remark.

    On a terminal the rows are a drawn table; elsewhere tabs separate the columns. The remarks about the
    server come last.
    """
    rows = [
        tuple(map(printable, row))
        for name in models
        for row in _rows(name, models[name], now_wall_ns)
    ]
    remarks = [line for name in models for line in _remarks(name, models[name], now_wall_ns)]
    remarks = [printable(line) for line in (*remarks, *server_remarks)]
    if not stream.isatty():
        for row in (_COLUMNS, *rows, *((line,) for line in remarks)):
            print("\t".join(row), file=stream)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*_COLUMNS)
    for row in rows:
        # Without Text, rich would read [brackets] in a message as markup.
        table.add_row(*(Text(cell) for cell in row))
    console = Console(file=stream)
    console.print(table)
    for line in remarks:
        console.print(Text(line))


def _rows(name: str, model: Mapping[str, Any], now_wall_ns: int) -> list[tuple[str, ...]]:
    if not model["versions"]:
        return [(name, "-", "no version", "", "", "", "")]
    return [
        (
            name,
            str(version["version"]),
            version["state"],
            age_text((now_wall_ns - version["state_changed_wall_ns"]) / NS_PER_SECOND),
            _memory_text(version),
            ", ".join(roles(model, version)),
            _error(version) or unload_reason(model, version) or _remark(version),
        )
        for version in model["versions"]
    ]


_BLOCK_TEXTS = {
    "operator": "blocked: rolled back",
    "canary": "blocked: rolled back by its canary figures",
    "crash": "blocked: it crashed the server",
    "failure": "blocked: its load failed",
    "gate": "blocked: a gate refused it",
}


def age_text(seconds: float) -> str:
    """An age like "42 s", "7 min", "3 h" or "2 d". A negative age, after a clock was set back, is "0 s"."""
    for unit_seconds, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit_seconds:
            return f"{seconds / unit_seconds:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def roles(model: Mapping[str, Any], version: Mapping[str, Any]) -> list[str]:
    """The requests that a version answers, and the reason why it is blocked."""
    number = version["version"]
    is_ready = version["state"] == "AVAILABLE"
    found = []
    if is_ready and number == model.get("default_version"):
        found.append("default")
    if number == model.get("canary_version"):
        found.append(f"canary {model['canary_weight']:.0%}")
    labels = model.get("labels", {})
    found += [f"label {label}" for label in sorted(labels) if labels[label] == number]
    if is_ready and number == model.get("previous"):
        found.append("previous")
    blocks = [_BLOCK_TEXTS[row["by"]] for row in _blocked(model) if row["version"] == number]
    if blocks and "default" in found:
        coming = coming_versions(model)
        # A blocked version answers only as the fallback: until another version can, and stays blocked.
        blocks.append(
            f"serves until version {coming[-1]} does"
            if coming
            else "serves because no other version can"
        )
    return found + blocks


def _blocked(model: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    rows: Sequence[Mapping[str, Any]] = model.get("blocked_versions", ())
    return rows


def unload_reason(model: Mapping[str, Any], version: Mapping[str, Any]) -> str:
    """The reason why a version that ended without an error is not loaded now; "" if it is not known."""
    number, found = version["version"], model.get("found_versions")
    if version["state"] != "END" or found is None:
        return ""
    if number in (row["version"] for row in _blocked(model)):
        return "unloaded: it is blocked; millpond allow unblocks it"
    if number not in found:
        return "unloaded: its directory is gone from the base path"
    if any(other > number for other in found):
        return "unloaded: the version policy selects a newer version"
    return "unloaded: the version policy does not select it"


def _memory_text(version: Mapping[str, Any]) -> str:
    resident_bytes = version.get("arena_resident_bytes")
    return "" if resident_bytes is None else f"{resident_bytes / _BYTES_PER_MB:,.1f}"


def _error(version: Mapping[str, Any]) -> str:
    outcome = "load failed: " if is_failed_load(version) else ""
    return _one_line(f"{outcome}{version['error_message']}") if version["error_message"] else ""


def _remark(version: Mapping[str, Any]) -> str:
    """The version's failed gates, or else the stage of its load or unload; "" otherwise."""
    failed = [item for item in version.get("verdicts", ()) if not item["is_passed"]]
    if failed:
        return _one_line("; ".join(f"gate {item['gate']}: {item['reason']}" for item in failed))
    return f"in {version['stage']}" if version.get("stage") else ""


def _remarks(name: str, model: Mapping[str, Any], now_wall_ns: int) -> list[str]:
    """The remarks about a model: memory, canary, labels, batches, blocked versions, notes of its source, its log."""
    lines = []
    if reason := model.get("unload_first_reason"):
        lines.append(f"{name}: the old version is unloaded first: {reason}")
    # Servers of earlier releases do not send "canary_progress".
    if progress := model.get("canary_progress"):
        lines.append(f"{name}: canary {model['canary_version']}: {progress}")
    for label, version in model.get("waiting_labels", {}).items():
        lines.append(f"{name}: label {label} waits for version {version}, which is not AVAILABLE")
    # Servers of earlier releases do not send "other_files".
    for number, directory in model.get("other_files", {}).items():
        lines.append(
            f"{name}: version {number} serves the files that it has loaded, and {directory} has "
            "others; drop these under a new version"
        )
    for version in model["versions"]:
        subject = f"{name}: version {version['version']}"
        lines += _transfer_remarks(subject, version)
        lines += [*_batching_remarks(subject, version), *_accelerator_remarks(subject, version)]
    shown = {version["version"] for version in model["versions"]}
    lines += [
        f"{name}: version {row['version']} is {_BLOCK_TEXTS[row['by']]}"
        for row in _blocked(model)
        if row["version"] not in shown
    ]
    lines += [_note_text(name, note) for note in model.get("notes", ())]
    # Servers of earlier releases do not send "request_log".
    if log := model.get("request_log"):
        lines.append(_log_text(name, log, now_wall_ns))
    return lines


def _log_text(name: str, log: Mapping[str, Any], now_wall_ns: int) -> str:
    """A line about a request log that is or was on: its records, the files that wait, and the last error."""
    where = f"to {log['filename_prefix']}" if log["filename_prefix"] else "is off"
    parts = [
        f"{log['written_count']:,} records written ({log['byte_count'] / _BYTES_PER_MB:,.1f} MB), "
        f"{log['dropped_count']:,} dropped, {log['pending_count']:,} pending"
    ]
    if log["waiting_file_count"]:
        parts.append(f"{log['waiting_file_count']:,} files wait for their upload")
    if log["lost_file_count"]:
        parts.append(f"{log['lost_file_count']:,} files were deleted unsent")
    if log["last_error"]:
        age = age_text((now_wall_ns - log["last_error_wall_ns"]) / NS_PER_SECOND)
        parts.append(f"last error {age} ago: {log['last_error']}")
    return _one_line(f"{name}: request log {where}: {'; '.join(parts)}")


def _transfer_remarks(subject: str, version: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line about the bytes that a load read, and one about those that it sent to accelerators.

    Each says why a delta was taken in full. Servers of earlier releases do not send the figures.
    """
    if reads := version.get("table_reads"):
        text = _share_text("read", reads["restored_bytes"], reads["kept_bytes"])
        if reads["copied_bytes"]:
            text += f", copied {_megabytes(reads['copied_bytes'])} in memory"
        yield _transfer_line(f"{subject}: {text}", "restored", reads["delta_restored_in_full"])
    if uploads := version.get("uploads"):
        kept_bytes, reason = uploads["accelerator_kept_bytes"], uploads["delta_uploaded_in_full"]
        if kept_bytes or reason:
            text = _share_text("uploaded", uploads["uploaded_bytes"], kept_bytes)
            yield _transfer_line(f"{subject}: {text}", "uploaded", reason)


def _share_text(verb: str, moved_bytes: float, kept_bytes: float) -> str:
    return f"{verb} {_megabytes(moved_bytes)} of {_megabytes(moved_bytes + kept_bytes)}"


def _transfer_line(text: str, verb: str, full_reason: str) -> str:
    return _one_line(f"{text}; delta {verb} in full: {full_reason}" if full_reason else text)


def _megabytes(size_bytes: float) -> str:
    return f"{size_bytes / _BYTES_PER_MB:,.1f} MB"


def _batching_remarks(subject: str, version: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each signature of a version: that it is batched, or the reason why it is not.

    Servers of earlier releases do not send "batching".
    """
    for state in version.get("batching", ()):
        if not state["is_on"]:
            refusal = _one_line(state["refusal"])
            yield f"{subject}: signature {state['signature']} is not batched: {refusal}"
        elif state["signature"]:
            rows = _rows_text(state)
            yield f"{subject}: signature {state['signature']} is batched{rows}, {_batches_text(state)}"
        else:
            yield f"{subject}: runs of several signatures are batched, {_batches_text(state)}"


def _accelerator_remarks(subject: str, version: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each signature of a version that has programs for the accelerator, or has none.

    Servers of earlier releases do not send "accelerator".
    """
    parts = {item["signature"]: item for item in version.get("accelerator_signatures", ())}
    runs = _runs_of_signatures(version.get("accelerator", ()))
    for name in {**parts, **runs}:
        on_cpu = _cpu_part(parts[name]) if name in parts else ""
        text = on_cpu and f"runs on the CPU {on_cpu}"
        if name in runs:
            start = f"{text}; on" if text else "runs on"
            text = f"{start} the accelerator {_runs_text(version, runs[name])}"
        # Servers of earlier releases do not send these three.
        part = parts.get(name, {})
        tuning = version.get("autotuning") or {}
        untuned = untuned_text(
            part.get("untuned_rows", ()), tuning.get("state", ""), tuning.get("reason", "")
        )
        more = sides_text(part.get("sizes", ())), untuned
        if text:
            yield "; ".join(filter(None, (f"{subject}: signature {name} {text}", *more)))


def _runs_of_signatures(items: Sequence[Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """The runs of each signature, on all accelerators together."""
    together: dict[str, dict[str, Any]] = {}
    for item in items:
        known = together.get(item["signature"])
        if known is None:
            together[item["signature"]] = dict(item)
            continue
        for key in ("run_count", "row_count", "padding_row_count"):
            known[key] += item[key]
        counts, more = known["cpu_run_counts"], item["cpu_run_counts"]
        known["cpu_run_counts"] = {reason: counts[reason] + more[reason] for reason in counts}
    return together


def _cpu_part(signature: Mapping[str, Any]) -> str:
    """The part of a signature that runs on the CPU, or why all of it does; "" if the accelerator runs all."""
    if signature["reason"]:
        return f"({_one_line(signature['reason'])})"
    parts = [*signature["cpu_ops"], *signature["cpu_tables"]]
    return f"in part ({', '.join(parts)})" if parts else ""


def _runs_text(version: Mapping[str, Any], runs: Mapping[str, Any]) -> str:
    rows = f"{runs['row_count']:,} rows and {runs['padding_row_count']:,} of padding"
    done = f"{runs['run_count']:,} runs, {rows}" if runs["run_count"] else "no run yet"
    reasons = [f"{reason} {count:,}" for reason, count in runs["cpu_run_counts"].items() if count]
    elsewhere = f"; on the CPU: {', '.join(reasons)}" if reasons else ""
    # Servers of earlier releases send only the bytes of the load.
    size_bytes = version.get("accelerator_resident_bytes", version["accelerator_bytes"])
    memory = f"{_megabytes(size_bytes)} of parameters there"
    return f"({memory}): {done}{elsewhere}"


def _rows_text(state: Mapping[str, Any]) -> str:
    """The reason why the server compares the answers of a batched signature; "" if it need not compare them."""
    if state.get("rows", "independent") == "independent":
        return ""
    return f" and compared ({_one_line(state['rows_reason'])})"


def _batches_text(state: Mapping[str, Any]) -> str:
    if state["requests_per_run"] is None:
        return "no run yet"
    rows_per_run = state["row_count"] / state["run_count"]
    return f"{state['requests_per_run']:.1f} requests and {rows_per_run:,.1f} rows per run"


def _note_text(name: str, note: Mapping[str, Any]) -> str:
    """A line like "ctr: version_incomplete: version 8, reason …"."""
    values = [
        f"{key} {', '.join(map(str, value)) if isinstance(value, list | tuple) else value}"
        for key, value in note.items()
        if key not in ("event", "level")
    ]
    return _one_line(": ".join([name, note["event"], *([", ".join(values)] if values else [])]))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="millpond status",
        description="Print the versions of MODEL, or of every model: states, roles, and what is wrong.",
        allow_abbrev=False,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="default: all models")
    parser.add_argument(
        "--json", action="store_true", help="print the server's whole reply, as JSON"
    )
    add_connection(parser)
    return parser
