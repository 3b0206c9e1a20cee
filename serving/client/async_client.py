"""The asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import grpc.aio
import numpy.typing as npt

from serving.base.clock import Clock, SystemClock
from serving.base.errors import MillpondError
from serving.base.protos import predict_pb2
from serving.base.signatures import Signature
from serving.client import calls
from serving.client.channels import ClientOptions, ClientSettings
from serving.client.connection import Connection
from serving.client.features import Features
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


class AsyncClient:
    """An asyncio client of one server, or of several servers in turn, without operator calls.

    Create and use it in a running event loop; `await close()` it or use `async with`. Cancelling a
    task cancels its call. Deadlines, retries, errors and methods are as for `Client`.
    """

    def __init__(
        self,
        target: str | Sequence[str],
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        open_channel: Callable[[Sequence[str]], grpc.aio.Channel] | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        """The parameters are as for `Client`. `sleep` is for tests too."""
        settings = ClientSettings(**options)
        self._sleep = sleep
        self._clock = clock or SystemClock()
        targets = target_list(target)
        channel = (open_channel or settings.open_asyncio)(targets)
        self._connection = Connection(targets, channel, settings.timeout_seconds)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the channel and cancels running calls."""
        await self._connection.close()

    async def predict(
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
        return await self._connection.run_async(calls.predict(name, inputs, output_filter, options))

    async def predict_message(
        self,
        request: predict_pb2.PredictRequest,
        **options: Unpack[calls.SendOptions],
    ) -> predict_pb2.PredictResponse:
        """Sends a request unchanged, and returns the response unchanged."""
        return await self._connection.run_async(calls.predict_message(request, options))

    async def classify(
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
        return await self._connection.run_async(calls.classify(name, examples, context, options))

    async def regress(
        self,
        name: str,
        examples: Sequence[Features],
        *,
        context: Features | None = None,
        **options: Unpack[calls.CallOptions],
    ) -> Regression:
        """Runs Regress, and returns float32[examples]. `context` has the features that all examples share."""
        return await self._connection.run_async(calls.regress(name, examples, context, options))

    async def model_status(
        self, name: str, version: int | None = None, *, timeout_seconds: float = 10
    ) -> tuple[VersionStatus, ...]:
        """Lists the versions of a model on the server, or only `version`; ascending."""
        return await self._connection.run_async(calls.model_status(name, version, timeout_seconds))

    async def signatures(
        self,
        name: str,
        version: int | None = None,
        *,
        label: str = "",
        timeout_seconds: float = 10,
    ) -> dict[str, Signature]:
        """Lists the signatures of a version that a client may run, by name."""
        return await self._connection.run_async(
            calls.signatures(name, version, label, timeout_seconds)
        )

    async def wait_until_ready(
        self, name: str, timeout_seconds: float = 60, *, version: int | None = None
    ) -> None:
        """Waits until `version` is AVAILABLE on a server; with None, until any version is.

        Also waits for a server that does not answer yet, and for a model that it does not have yet.
        Raises Unavailable, with the last status or error, after `timeout_seconds`.
        """
        readiness = Readiness(name, version, timeout_seconds, self._clock)
        while True:
            try:
                if readiness.is_over(await self._connection.run_async(readiness.look())):
                    return
            except MillpondError as error:
                readiness.check_error(error)
            await self._sleep(readiness.pause_seconds)
