"""The asyncio client."""

import asyncio
import random as random_module
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc.aio
import numpy.typing as npt

from serving.base.clock import Clock, SystemClock
from serving.base.errors import MillpondError
from serving.base.protos import predict_pb2
from serving.client import messages
from serving.client.async_servers import AsyncServers, Sleep
from serving.client.channels import (
    CLASSIFY,
    MODEL_METADATA,
    MODEL_STATUS,
    PREDICT,
    REGRESS,
    ChannelSettings,
    ChooseMethod,
    Compression,
    Tls,
    target_list,
)
from serving.client.features import Features
from serving.client.messages import Addressee
from serving.client.readiness import Readiness
from serving.client.results import (
    Classification,
    Prediction,
    Regression,
    Signature,
    VersionStatus,
)
from serving.client.retries import ONE_ATTEMPT, RetryPolicy
from serving.client.rotation import Health


class AsyncClient:
    """An asyncio client of one server, or of several servers in turn, without operator calls.

    Create and use it in a running event loop; `await close()` it or use `async with`. Cancelling a
    task cancels its call. Deadlines, retries and errors are as for `Client`.
    """

    def __init__(
        self,
        target: str | Sequence[str],
        *,
        timeout_seconds: float = 60,
        retries: RetryPolicy | None = None,
        tls: Tls | None = None,
        compression: Compression = "none",
        channel_options: Mapping[str, int | str] | None = None,
        health_service: str = "",
        clock: Clock | None = None,
        random: Callable[[], float] = random_module.random,
        sleep: Sleep = asyncio.sleep,
        open_channel: Callable[[str], grpc.aio.Channel] | None = None,
    ) -> None:
        """The parameters are as for `Client`. The last four are for tests."""
        settings = ChannelSettings(tls=tls, compression=compression, options=channel_options or {})
        self._timeout_seconds = timeout_seconds
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._servers = AsyncServers(
            target_list(target),
            open_channel or settings.open_asyncio,
            retries=retries or RetryPolicy(),
            health_service=health_service,
            clock=self._clock,
            sleep=sleep,
            random=random,
        )

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the channels and cancels running calls."""
        await self._servers.close()

    @property
    def healths(self) -> Mapping[str, Health]:
        """The health that each of several servers reports, by target."""
        return dict(zip(self._servers.targets, self._servers.healths, strict=True))

    async def predict(
        self,
        name: str,
        inputs: Mapping[str, npt.ArrayLike],
        *,
        version: int | None = None,
        label: str = "",
        signature_name: str = "",
        output_filter: Sequence[str] = (),
        metadata: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> Prediction:
        """Sends a Predict request. Without `version` or `label` the model's default version answers.

        `inputs` become tensors with the dtypes and shapes of their arrays. `metadata` are gRPC headers,
        such as the header that requests a canary. Raises MillpondError.
        """
        request = messages.predict_request(
            Addressee(name=name, version=version, label=label, signature_name=signature_name),
            inputs,
            output_filter,
        )
        return messages.prediction(
            await self.predict_message(request, metadata=metadata, timeout_seconds=timeout_seconds)
        )

    async def predict_message(
        self,
        request: predict_pb2.PredictRequest,
        *,
        metadata: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> predict_pb2.PredictResponse:
        """Sends a request unchanged, and returns the response unchanged."""
        response: predict_pb2.PredictResponse = await self._call(
            PREDICT, request, timeout_seconds, metadata
        )
        return response

    async def classify(
        self,
        name: str,
        examples: Sequence[Features],
        *,
        context: Features | None = None,
        version: int | None = None,
        label: str = "",
        signature_name: str = "",
        metadata: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> Classification:
        """Returns the classes of each example. `context` has the features that all examples share."""
        request = messages.classify_request(
            Addressee(name=name, version=version, label=label, signature_name=signature_name),
            examples,
            context,
        )
        return messages.classification(
            await self._call(CLASSIFY, request, timeout_seconds, metadata)
        )

    async def regress(
        self,
        name: str,
        examples: Sequence[Features],
        *,
        context: Features | None = None,
        version: int | None = None,
        label: str = "",
        signature_name: str = "",
        metadata: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> Regression:
        """Returns float32[examples]. `context` has the features that all examples share."""
        request = messages.regress_request(
            Addressee(name=name, version=version, label=label, signature_name=signature_name),
            examples,
            context,
        )
        return messages.regression(await self._call(REGRESS, request, timeout_seconds, metadata))

    async def model_status(
        self, name: str, version: int | None = None, *, timeout_seconds: float = 10
    ) -> tuple[VersionStatus, ...]:
        """Returns the versions of a model on the server, or only `version`; ascending."""
        request = messages.status_request(Addressee(name=name, version=version))
        return messages.statuses(await self._call(MODEL_STATUS, request, timeout_seconds))

    async def signatures(
        self,
        name: str,
        version: int | None = None,
        *,
        label: str = "",
        timeout_seconds: float = 10,
    ) -> dict[str, Signature]:
        """Returns the signatures of a version that a client may run, by name."""
        request = messages.metadata_request(Addressee(name=name, version=version, label=label))
        return messages.signatures(await self._call(MODEL_METADATA, request, timeout_seconds))

    async def wait_until_ready(
        self, name: str, timeout_seconds: float = 60, *, version: int | None = None
    ) -> None:
        """Waits until `version` is AVAILABLE on a server; with None, until any version is.

        Also waits for a server that does not answer yet, and for a model that it does not have yet.
        Raises Unavailable, with the last status or error, after `timeout_seconds`.
        """
        readiness = Readiness(name, version, timeout_seconds, self._clock)
        request = messages.status_request(Addressee(name=name))
        while True:
            try:
                response = await self._servers.call(
                    MODEL_STATUS, request, readiness.look_seconds, retries=ONE_ATTEMPT
                )
                if readiness.is_over(messages.statuses(response)):
                    return
            except MillpondError as error:
                readiness.check_error(error)
            await self._sleep(readiness.pause_seconds)

    async def _call(
        self,
        choose: ChooseMethod,
        request: Any,
        timeout_seconds: float | None,
        metadata: Mapping[str, str] | None = None,
    ) -> Any:
        if timeout_seconds is None:
            timeout_seconds = self._timeout_seconds
        return await self._servers.call(choose, request, timeout_seconds, metadata=metadata)
