"""The blocking client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import grpc
import numpy.typing as npt

from serving.base.clock import Clock, SystemClock, pause
from serving.base.errors import MillpondError
from serving.base.protos import predict_pb2
from serving.base.signatures import Signature
from serving.client import calls
from serving.client.channels import ClientOptions, ClientSettings
from serving.client.connection import Connection
from serving.client.features import Features
from serving.client.operator_calls import OperatorCalls
from serving.client.readiness import Readiness
from serving.client.results import (
    Classification,
    Prediction,
    Regression,
    VersionStatus,
)
from serving.client.targets import target_list

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Client(OperatorCalls):
    """A client of one server, or of several servers in turn. Use it from any thread; `close` it or use `with`.

    Every call has a deadline. A call that a server could not accept is tried again within the deadline,
    at the next server if there are several. Every call raises MillpondError if it fails: Unavailable if
    no server can be reached, otherwise with the server's code and message.
    """

    def __init__(
        self,
        target: str | Sequence[str],
        *,
        clock: Clock | None = None,
        open_channel: Callable[[Sequence[str]], grpc.Channel] | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        """`target` is `HOST:PORT` or `unix:PATH`, or a list of `IP:PORT` or of `unix:PATH`.

        `options` are the fields of ClientOptions. `clock` and `open_channel` are for tests.
        """
        settings = ClientSettings(**options)
        self._clock = clock or SystemClock()
        targets = target_list(target)
        channel = (open_channel or settings.open)(targets)
        super().__init__(Connection(targets, channel, settings.timeout_seconds))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the channel and cancels running calls."""
        self._connection.close()

    def predict(
        self,
        name: str,
        inputs: Mapping[str, npt.ArrayLike],
        *,
        output_filter: Sequence[str] = (),
        **options: Unpack[calls.CallOptions],
    ) -> Prediction:
        """Runs Predict, and returns its outputs.

        `output_filter` names the outputs to return, all if empty.

        `inputs` become tensors with the dtypes and shapes of their arrays. `options` are the fields of
        CallOptions: version, label, signature_name, metadata, timeout_seconds or timeout.
        """
        return self._connection.run(calls.predict(name, inputs, output_filter, options))

    def predict_message(
        self,
        request: predict_pb2.PredictRequest,
        **options: Unpack[calls.SendOptions],
    ) -> predict_pb2.PredictResponse:
        """Sends a request unchanged, and returns the response unchanged."""
        return self._connection.run(calls.predict_message(request, options))

    def classify(
        self,
        name: str,
        examples: Sequence[Features],
        *,
        context: Features | None = None,
        **options: Unpack[calls.CallOptions],
    ) -> Classification:
        """Runs Classify, and returns the classes of each example.

        `context` has the features that all examples share.
        """
        return self._connection.run(calls.classify(name, examples, context, options))

    def regress(
        self,
        name: str,
        examples: Sequence[Features],
        *,
        context: Features | None = None,
        **options: Unpack[calls.CallOptions],
    ) -> Regression:
        """Runs Regress, and returns float32[examples]. `context` has the features that all examples share."""
        return self._connection.run(calls.regress(name, examples, context, options))

    def model_status(
        self, name: str, version: int | None = None, *, timeout_seconds: float = 10
    ) -> tuple[VersionStatus, ...]:
        """Lists the versions of a model on the server, or only `version`; ascending."""
        return self._connection.run(calls.model_status(name, version, timeout_seconds))

    def signatures(
        self,
        name: str,
        version: int | None = None,
        *,
        label: str = "",
        timeout_seconds: float = 10,
    ) -> dict[str, Signature]:
        """Lists the signatures of a version that a client may run, by name."""
        return self._connection.run(calls.signatures(name, version, label, timeout_seconds))

    def wait_until_ready(
        self, name: str, timeout_seconds: float = 60, *, version: int | None = None
    ) -> None:
        """Waits until `version` is AVAILABLE on a server; with None, until any version is.

        Also waits for a server that does not answer yet, and for a model that it does not have yet.
        Raises Unavailable, with the last status or error, after `timeout_seconds`.
        """
        readiness = Readiness(name, version, timeout_seconds, self._clock)
        while True:
            try:
                if readiness.is_over(self._connection.run(readiness.look())):
                    return
            except MillpondError as error:
                readiness.check_error(error)
            pause(self._clock, readiness.pause_seconds)
