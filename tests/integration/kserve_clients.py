"""Triton's clients over gRPC and HTTP, and inputs for the echo model."""

from contextlib import closing
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import np_to_triton_dtype

from serving import ModelServer

MODULES: dict[str, Any] = {"grpc": triton_grpc, "http": triton_http}
DENSE = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
IDS = np.array([7, 8], np.int64)


def url_of(server: ModelServer, transport: str) -> str:
    if transport == "grpc":
        return server.target
    return server.url.removeprefix("http://")


def client_of(triton: Any, server: ModelServer) -> Any:
    transport = "grpc" if triton is triton_grpc else "http"
    return closing(triton.InferenceServerClient(url_of(server, transport)))


def tensor(triton: Any, name: str, array: Any, **how: Any) -> Any:
    datatype = "BYTES" if array.dtype == object else np_to_triton_dtype(array.dtype)
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, **how)
    return made


def echo_inputs(triton: Any, **how: Any) -> list[Any]:
    return [tensor(triton, "dense", DENSE, **how), tensor(triton, "ids", IDS, **how)]
