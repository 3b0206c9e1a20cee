"""AnswerWatch: keeps what a new version answered in a warm-up, so that the gates can look at it.

The warm-ups run the requests of the warm-up file and the kept live requests anyway. The gates look at
all those answers, so they need not run the new version again, and ask the predecessor only if an
answer is suspicious.
"""

from dataclasses import dataclass

from serving.gates.tensor_compare import Outputs, has_non_finite, read_outputs
from warmup.self_warm_up import Pair, pair_of

ANSWER_COUNT_MAX = 128
"""The most answers that are kept of one warm-up: twice the live requests that are kept by default."""

ANSWER_BYTES_MAX = 8 * 2**20
"""The most bytes of these answers and their requests.

They stay in memory until the last gate ends, and for a moment the gates need several times as much.
"""

SUSPECT_COUNT_MAX = 16
"""The most further answers that are kept because a value is NaN or infinite.

More would show nothing more. Their bytes have the same limit, but the first of them is kept whatever its
size.
"""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The outputs of a new version for one request."""

    method: str
    request: bytes
    outputs: Outputs

    @property
    def kind(self) -> tuple[str, Pair]:
        """The method. For a Predict request, also its signature and the outputs that it names."""
        return self.method, pair_of(self.request if self.method == "Predict" else b"")


class AnswerWatch:
    """The answers to the distinct requests of one warm-up. Used on the loader thread of one version."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self._seen: set[int] = set()
        self._left_bytes = ANSWER_BYTES_MAX
        self._suspect_count = 0
        self._left_suspect_bytes = ANSWER_BYTES_MAX

    def saw(self, method: str, request: bytes, response: bytes) -> None:
        """Keeps the answer if there is room, or if one of its values is NaN or infinite.

        If a request is run several times, only its first answer is kept.
        """
        key = hash((method, request))
        if key in self._seen:
            return
        self._seen.add(key)
        outputs = read_outputs(method, response)
        if outputs is None:
            return
        size_bytes = len(request) + len(response)
        if len(self.answers) < ANSWER_COUNT_MAX and size_bytes <= self._left_bytes:
            self._left_bytes -= size_bytes
        elif self._has_room_for_suspect(size_bytes) and has_non_finite(outputs):
            self._suspect_count += 1
            self._left_suspect_bytes -= size_bytes
        else:
            return
        self.answers.append(Answer(method=method, request=request, outputs=outputs))

    def _has_room_for_suspect(self, size_bytes: int) -> bool:
        if self._suspect_count == 0:
            return True
        is_small = size_bytes <= self._left_suspect_bytes
        return is_small and self._suspect_count < SUSPECT_COUNT_MAX
