"""Describes wrong replies of a CTR model, so that their cause can be looked for.

A row's answer may be right for other inputs: another row's, another request's, another version's, zeros, or one
input of its own beside one of another row. Which of them it is says what was mixed up. Pure.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from serving.commands.ctr_model import reference_answer

DESCRIBED_MAX = 8
"""The wrong replies of a load that are described."""

# The reference sums in float64 and the answers in float32, which differ by 2e-7.
_EQUAL = 5e-7
# The rows of a reply whose origin is looked for, and whose values are kept.
_ROWS_MAX = 32

Inputs = Mapping[str, npt.NDArray[Any]]

Reference = Callable[[int, dict[str, Any], int], npt.NDArray[Any]]
"""The right output `ctr` of a version, by the inputs of requests and the rows of a table."""


@dataclass(frozen=True, kw_only=True)
class WrongReply:
    """One wrong reply to a request.

    `at_seconds` is the time in the load at which the request was issued. `problem` is not empty if the reply has
    no answer for each row, and then nothing but the time is known for sure. `version_output` has the rows of each
    value of the output `version`. `bad_rows` have another `ctr` than the version that the reply names; `values`,
    `right_values` and `origins` are those of the first of them. `difference_max` is None if no row is bad or if
    one is NaN.
    """

    at_seconds: float
    latency_ms: float
    payload: int | None = None
    problem: str = ""
    version: int | None = None
    version_output: Mapping[str, int] | None = None
    rows: int = 0
    bad_rows: Sequence[int] = ()
    not_finite_count: int = 0
    difference_max: float | None = None
    values: Sequence[str] = ()
    right_values: Sequence[str] = ()
    origins: Sequence[str] = ()

    def __str__(self) -> str:
        """A line for the console."""
        line = f"wrong reply at {self.at_seconds:.3f} s, after {self.latency_ms:.2f} ms"
        if self.payload is not None:
            line += f", to payload {self.payload}"
        if self.problem:
            return f"{line}: {self.problem}"
        line += f": version {self.version}, its output {dict(self.version_output or {})}"
        if not self.bad_rows:
            return line
        difference = "NaN" if self.difference_max is None else f"{self.difference_max:.2e}"
        kinds = (re.sub(r"^row \d+: |row \d+ of ", "", origin) for origin in self.origins)
        shown = Counter(kinds).most_common(2)
        most = "; ".join(f"{count} x {origin}" for origin, count in shown)
        return (
            f"{line}, {len(self.bad_rows)} of {self.rows} rows bad, {self.bad_rows[0]} to "
            f"{self.bad_rows[-1]}, difference {difference}, {self.not_finite_count} not finite: {most}"
        )


def wrong_replies_json(replies: Iterable[WrongReply]) -> list[dict[str, Any]]:
    """The JSON of the first of `replies`, each with its line for the console."""
    return [{"line": str(reply), **asdict(reply)} for reply in islice(replies, DESCRIBED_MAX)]


class AnswerOrigins:
    """The answers that the versions give to the rows of a load's requests."""

    def __init__(
        self,
        requests: Sequence[Inputs],
        contents: Sequence[int],
        table_rows: int,
        reference: Reference = reference_answer,
    ) -> None:
        """`contents` are the numbers with which the versions were exported. All requests have the same rows."""
        self._requests = requests
        self._contents = contents
        self._table_rows = table_rows
        self._reference = reference
        self._rows = len(requests[0]["dense"])
        # The last row stands for memory that holds zeros.
        self._all = {
            name: np.concatenate(
                [*(request[name] for request in requests), requests[0][name][:1] * 0]
            )
            for name in requests[0]
        }
        self._whole = [reference(c, self._all, table_rows).ravel() for c in contents]

    def of(self, value: float, payload: int, row: int) -> str:
        """Names the inputs and the version to which `value` is the answer, or says `unknown`."""
        if not np.isfinite(value):
            return "not finite"
        kinds: Sequence[tuple[str, Callable[[int], npt.NDArray[Any]]]] = [
            ("", lambda index: self._whole[index]),
            *(
                (
                    f"{name} of its own with ",
                    lambda index, kept=name: self._mixed(index, kept, payload, row),
                )
                for name in self._all
            ),
        ]
        for kind, answers_of in kinds:
            for index, content in enumerate(self._contents):
                differences = np.abs(answers_of(index) - value)
                nearest = int(differences.argmin())
                if differences[nearest] <= _EQUAL:
                    return f"{kind}{self._name(nearest, payload, row)} by export {content}"
        return "unknown"

    def _mixed(self, index: int, kept: str, payload: int, row: int) -> npt.NDArray[Any]:
        """The answers to the input `kept` of the row beside the other input of each row."""
        own = self._requests[payload][kept][row]
        mixed = {**self._all, kept: np.broadcast_to(own, self._all[kept].shape)}
        return self._reference(self._contents[index], mixed, self._table_rows).ravel()

    def _name(self, index: int, payload: int, row: int) -> str:
        other, place = divmod(index, self._rows)
        if other == len(self._requests):
            return "zeros"
        if other == payload:
            return "its row" if place == row else "another row of its request"
        # A run is filled up with copies of the last row of its last request.
        which = "last row" if place == self._rows - 1 else f"row {place}"
        return f"{which} of payload {other}"


def described(
    ctr: npt.NDArray[Any] | None,
    versions: npt.NDArray[Any] | None,
    right: npt.NDArray[Any],
    tolerance: float,
    origin_of: Callable[[float, int], str],
) -> dict[str, Any]:
    """The fields of WrongReply that follow from its outputs, which are None if they were not requested.

    A row is bad if its `ctr` is not within `tolerance` of the right one. `origin_of` names the origin of a value
    of a row.
    """
    found: dict[str, Any] = {"rows": len(right)}
    if versions is not None:
        counts = Counter(np.ravel(versions).tolist())
        found["version_output"] = {str(value): count for value, count in counts.items()}
    if ctr is None:
        return found
    values, expected = np.ravel(ctr).astype(np.float64), np.ravel(right)
    differences = np.abs(values - expected)
    # NaN is not at most anything.
    bad = [int(row) for row in np.flatnonzero(~(differences <= tolerance))]
    is_number = bool(bad) and bool(np.isfinite(differences).all())
    first = bad[:_ROWS_MAX]
    return found | {
        "bad_rows": bad,
        "not_finite_count": int(np.count_nonzero(~np.isfinite(values))),
        "difference_max": float(differences[bad].max()) if is_number else None,
        "values": [repr(float(values[row])) for row in first],
        "right_values": [repr(float(expected[row])) for row in first],
        "origins": [f"row {row}: {origin_of(float(values[row]), row)}" for row in first],
    }
