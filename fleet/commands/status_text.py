"""Prints the status of a fleet for people."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from serving.base.name_text import printable
from serving.manager.canary import FAILED_SHARE_MAX

# The name of a Ray node has 56 characters. Only this many of them are shown.
_NODE_LENGTH = 12
# The most blocked versions that the status of a model shows, and the most characters of each reason.
_BLOCKED_COUNT_MAX = 5
_REASON_LENGTH_MAX = 200
# The most names of servers in one line.
_NAME_COUNT_MAX = 10

# By the field `by` of a blocked version, the words for people.
_JUDGES: Mapping[str, str] = {"canary": "its judgement", "operator": "an operator"}


def print_models(models: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints a few lines for each model: its stable version, its rollout, and what is blocked."""
    for name, model in models.items():
        lines = [f"{name}: {_stable_line(model)}"]
        if rollout := model["rollout"]:
            lines += [f"{name}: {line}" for line in _rollout_lines(rollout, model["stable"])]
        if model["is_paused"]:
            lines.append(f"{name}: paused")
        if model["waits_for"]:
            lines.append(f"{name}: waits: {model['waits_for']}")
        if servers := model["without_files"]:
            lines.append(
                f"{name}: servers without the files of version {model['stable']}, which serve another "
                f"one or none until they have them: {_names(servers)}"
            )
        if servers := model["ignored_by"]:
            lines.append(
                f"{name}: servers that ignore this coordinator, because they have taken grants of "
                f"another one, or of one whose state is lost: {_names(servers)}"
            )
        lines += [f"{name}: {line}" for line in _blocked_lines(name, model["blocked_versions"])]
        for line in lines:
            print(printable(line))


def _stable_line(model: Mapping[str, Any]) -> str:
    if model["stable"] is None:
        if not model["found_versions"]:
            return "no server has found a version; check the base path where the servers run"
        return "no version is stable yet"
    if model["previous"] is None:
        return f"stable version {model['stable']}, and none to roll back to"
    return f"stable version {model['stable']}, before it {model['previous']}"


def _rollout_lines(rollout: Mapping[str, Any], stable: int | None) -> Iterator[str]:
    """Yields the lines of a rollout: its wave, the progress of its judgement, its warnings and failures."""
    yield (
        f"version {rollout['version']} is in wave {rollout['wave']} of {rollout['wave_count']}, "
        f"on {rollout['serving_count']} of {rollout['needed_count']} servers"
    )
    judgement = rollout["judgement"]
    passed = judgement["passed_seconds"]
    if passed is None:
        yield "the judgement begins when all these servers serve it"
    elif stable is None:
        yield "a first version is not compared with another one"
    elif rollout["compared"] is None:
        yield (
            f"it is stable after {judgement['seconds']:g} s{_limit(rollout)}; so far "
            f"{rollout['failed_count']} of {rollout['request_count']} requests failed in {passed:g} s"
        )
    else:
        new, old = rollout["compared"]["wave"], rollout["compared"]["control"]
        of_requests = (
            f"{judgement['request_count']} requests or " if judgement["request_count"] else ""
        )
        yield (
            f"it is judged after {of_requests}{judgement['seconds']:g} s; so far "
            f"{new['failed_count']} of {new['request_count']} requests failed in {passed:g} s"
        )
        if not new["request_count"]:
            yield "a wave without requests passes: send it some, or pause it until clients do"
        if new["request_count"] and old["request_count"]:
            yield f"its p99 is {new['p99_ms']:.1f} ms; {old['p99_ms']:.1f} ms with version {stable}"
    if rollout["doubt"]:
        yield f"it is compared once more: {rollout['doubt']}"
    for name, reason in rollout["warned"].items():
        yield f"a gate has warned on {name}: {reason}"
    for name, cause in rollout["causes"].items():
        yield f"it failed on {name}: {cause}"


def _limit(rollout: Mapping[str, Any]) -> str:
    """The limit of failures in the last wave; "" if an operator has promoted the version."""
    if rollout["is_promoted"]:
        return ""
    return f", unless more than {FAILED_SHARE_MAX:.0%} of its requests fail"


def _blocked_lines(model: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a line for each of the latest blocked versions, with the beginning of its reason."""
    latest = sorted(rows, key=lambda row: row["version"])[-_BLOCKED_COUNT_MAX:]
    for row in latest:
        reason = row["reason"]
        if len(reason) > _REASON_LENGTH_MAX:
            reason = f"{reason[:_REASON_LENGTH_MAX]}…"
        yield f"version {row['version']} is blocked by {_JUDGES.get(row['by'], row['by'])}: {reason}"
    if len(rows) > len(latest):
        yield f"{len(rows) - len(latest)} older versions are blocked too: status --json"
    if rows:
        yield f"to unblock a version: millpond fleet allow {model} VERSION"


def _names(servers: Sequence[str]) -> str:
    """The first names, and the number of further ones."""
    more = f" and {len(servers) - _NAME_COUNT_MAX} more" if len(servers) > _NAME_COUNT_MAX else ""
    return ", ".join(servers[:_NAME_COUNT_MAX]) + more


def print_versions(models: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints a row for each version of each model, summed over all servers. Tabs separate the columns."""
    print("model\tversion\tservers\tdefault on\trequests\tfailed\tp99 ms\tp999 ms")
    for name, model in models.items():
        for row in model["versions"]:
            cells = (
                name,
                row["version"],
                row["server_count"],
                row["default_count"],
                row["request_count"],
                row["failed_count"],
                f"{row['p99_ms']:.1f}",
                f"{row['p999_ms']:.1f}",
            )
            print("\t".join(printable(str(cell)) for cell in cells))


def print_servers(servers: Sequence[Mapping[str, Any]]) -> None:
    """Prints a row for each server. Tabs separate the columns."""
    print("server\tstate\tseen\tversions")
    for row in servers:
        versions = ", ".join(
            f"{model} {'-' if version is None else version}"
            for model, version in row["versions"].items()
        )
        seen = "not yet" if row["state"] == "unknown" else f"{row['seen_seconds']} s ago"
        cells = (row["name"], row["state"], seen, versions)
        print("\t".join(printable(str(cell)) for cell in cells))


def print_replicas(reply: Mapping[str, Any]) -> None:
    """Prints a row for each server that the fleet has started. Tabs separate the columns."""
    print("server\tphase\trestart\tnode\taddress")
    for row in reply["replicas"]:
        restart = "to come" if row["is_to_restart"] else ""
        phase = "not ready" if row["phase"] == "up" and not row["is_ready"] else row["phase"]
        cells = (row["name"], phase, restart, row["node"][:_NODE_LENGTH], row["grpc"])
        print("\t".join(printable(str(cell)) for cell in cells))
    for model, count in reply["missing"].items():
        print(printable(f"{model}: replicas without a node with room: {count}"))
