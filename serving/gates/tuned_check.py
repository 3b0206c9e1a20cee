"""Compares the answers of tuned programs with what their version has answered before."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from serving.base.errors import Cancelled, MillpondError, NotFound, StatusCode
from serving.core.cancellation import Cancellation
from serving.core.model_settings import GateSettings
from serving.core.servable import ServableId
from serving.data_plane.servables import Servable
from serving.data_plane.status_errors import statuses_as_errors
from serving.gates.answer_watch import Answer
from serving.gates.gates import first_few, golden_tolerance
from serving.gates.tensor_compare import compare_outputs, read_outputs

ANSWERS_MAX = 16
"""The most recorded answers that are compared: more would take the accelerator's time without another verdict."""

SMALL_UNITS = 4
"""The last places by which values of float16 and bfloat16 may differ, as in batches: another order of the same sums
changes more of them than the tolerance of golden answers has."""

_PASSING_CODES = frozenset(
    {
        StatusCode.UNAVAILABLE,
        StatusCode.RESOURCE_EXHAUSTED,
        StatusCode.ABORTED,
        StatusCode.DEADLINE_EXCEEDED,
    }
)
"""A run has these if its parameters are away, if no memory is left for it, or if it waited too long for its turn: for
its own time, or until its deadline."""


class PassingShortage(Exception):
    """A run could not be made now, which says nothing about its programs: a later check may pass."""


@dataclass(frozen=True)
class TunedCheck:
    """The check that programs pass before they take the place of others of the same version.

    `answers` were recorded in the load. Made-up requests to each signature are compared too, so that each of its
    programs runs at least once: one request, or one of each number of rows for programs that need exactly these. Both
    methods look at `cancellation` before each request, and then raise Cancelled.
    """

    servable_id: ServableId
    servable: Servable
    answers: Sequence[Answer]
    settings: GateSettings
    status_error: type[Exception]
    cancellation: Cancellation

    def expected(self) -> Sequence[Answer]:
        """Collects the answers of the programs that serve. Requests that they refuse are left out.

        Raises PassingShortage if a request could not be run now.
        """
        return [*self.answers[:ANSWERS_MAX], *self._made_up_answers()]

    def faults(self, rows: int, expected: Sequence[Answer]) -> str:
        """Runs the offered programs of `rows` rows; returns how they differ from `expected`, or "".

        They differ if a value differs by more than the tolerance of golden answers, or if a request fails. Values of
        16 bits may differ by SMALL_UNITS. Raises PassingShortage if a request could not be run now.
        """
        faults = [fault for answer in expected for fault in self._faults(rows, answer)]
        return first_few(faults) if faults else ""

    def _faults(self, rows: int, expected: Answer) -> Iterator[str]:
        self._raise_if_cancelled()
        try:
            with statuses_as_errors(self.status_error):
                response = self.servable.try_tuned_programs(rows, expected.method, expected.request)
        except NotFound:
            return  # Nothing was offered for the request's signature, or its rows do not fill a program.
        except MillpondError as error:
            _raise_if_passing(error)
            yield str(error)
            return
        outputs = read_outputs(expected.method, response) or {}
        tolerance = replace(golden_tolerance(self.settings), small_units=SMALL_UNITS)
        comparison = compare_outputs(expected.outputs, outputs, tolerance)
        yield from comparison.faults
        if comparison.first_change:
            yield comparison.first_change

    def _made_up_answers(self) -> Iterator[Answer]:
        # Only here, because it imports numpy and grpcio, which few servers need.
        from warmup.synthesis import made_up_request

        definitions = self.servable.signature_def_map()
        for signature in self.servable.accelerator_signatures():
            if not signature.untuned_rows:
                continue
            for rows in signature.untuned_rows if signature.needs_exact_rows else (1,):
                request = made_up_request(
                    definitions, self.servable_id.name, signature.name, rows=rows
                )
                answer = None if request is None else self._answer_now(request)
                if answer is not None:
                    yield answer

    def _answer_now(self, request: bytes) -> Answer | None:
        """The answer of the programs that serve; None if they refuse the request."""
        self._raise_if_cancelled()
        try:
            with statuses_as_errors(self.status_error):
                outputs = read_outputs("Predict", self.servable.replay("Predict", request))
        except MillpondError as error:
            _raise_if_passing(error)
            return None
        if outputs is None:
            return None
        return Answer(method="Predict", request=request, outputs=outputs)

    def _raise_if_cancelled(self) -> None:
        if self.cancellation.is_cancelled:
            raise Cancelled(f"{self.servable_id} is not served any more")


def _raise_if_passing(error: MillpondError) -> None:
    if error.code in _PASSING_CODES:
        raise PassingShortage(str(error)) from error
