"""The figures of outcomes: latencies, the generator's own accuracy, and the messages of failures."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.measure.latency import NS_PER_MS, figures
from loadtest.measure.timeline import LATE_NS, Span, held_up_by_generator, late_stretches
from loadtest.plan.plan import Outcome
from loadtest.plan.wrong_replies import WrongReply, wrong_replies_json
from serving.base.clock import NS_PER_SECOND

_ERROR_MESSAGES_SHOWN = 5


def latencies_ns(outcome: Outcome) -> npt.NDArray[np.int64]:
    """Latencies from the due times, so that a late generator does not hide a slow
    server.
    """
    return outcome.completed_ns - outcome.scheduled_ns


def latencies_within_ns(outcome: Outcome, spans: Iterable[Span]) -> npt.NDArray[np.int64]:
    """The latencies of the requests that were due in one of `spans`."""
    due_ns = outcome.scheduled_ns
    is_within = np.zeros(len(due_ns), np.bool_)
    for span in spans:
        is_within |= (due_ns >= span.begin_ns) & (due_ns < span.end_ns)
    return latencies_ns(outcome)[is_within]


def generator_figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The generator's accuracy: how well it kept to its plan, and its share of a core."""
    delay_ns = np.concatenate([outcome.issued_ns - outcome.scheduled_ns for outcome in outcomes])
    delay = figures(delay_ns)
    stretches = [late_stretches(outcome) for outcome in outcomes]
    left_out = [held_up_by_generator(o, s) for o, s in zip(outcomes, stretches, strict=True)]
    run_ns = sum(int(np.ptp(outcome.scheduled_ns)) for outcome in outcomes if len(outcome.codes))
    return {
        **{f"issue_delay_{key}": value for key, value in delay.items() if key != "count"},
        "is_realtime": all(outcome.is_realtime for outcome in outcomes),
        "late_over_ms": LATE_NS / NS_PER_MS,
        "late_stretch_count": sum(len(spans) for spans in stretches),
        "late_seconds": round(sum(_seconds(span) for spans in stretches for span in spans), 4),
        "left_out_count": sum(int(mask.sum()) for mask in left_out),
        "core_share": round(sum(outcome.cpu_ns for outcome in outcomes) / max(run_ns, 1), 4),
    }


def answer_figures(
    outcomes: Sequence[Outcome], wrong_count: int | None, wrong_replies: Iterable[WrongReply] = ()
) -> dict[str, Any]:
    """The counts of lost and of wrongly answered requests, the messages of the lost ones, and the first
    of `wrong_replies`.

    `wrong_count` is None if answers were not checked.
    """
    return {
        "errors": sum(int((outcome.codes != 0).sum()) for outcome in outcomes),
        "wrong_answers": wrong_count,
        "wrong_replies": wrong_replies_json(wrong_replies),
        "error_messages": error_messages(outcomes),
    }


def error_messages(outcomes: Iterable[Outcome]) -> list[str]:
    """The most frequent messages of failed requests, each with its count."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        texts = [
            f"{reply.code}: {reply.data.decode(errors='replace')}" for reply in outcome.replies
        ]
        for request in np.flatnonzero(outcome.codes):
            number = outcome.reply_of[request]
            counts[texts[number] if number >= 0 else f"{outcome.codes[request]}"] += 1
    return [f"{count} x {text}" for text, count in counts.most_common(_ERROR_MESSAGES_SHOWN)]


def _seconds(span: Span) -> float:
    return (span.end_ns - span.begin_ns) / NS_PER_SECOND
