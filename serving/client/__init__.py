"""Clients of a model server. They take and return numpy arrays, and do not import TensorFlow."""

from serving.base.signatures import Signature, TensorSpec, signature_of
from serving.client.async_client import AsyncClient
from serving.client.calls import CallOptions
from serving.client.channels import ClientOptions, Compression, Tls
from serving.client.features import Features
from serving.client.results import (
    Array,
    Classification,
    Prediction,
    Regression,
    ScoredClass,
    VersionStatus,
)
from serving.client.service_config import RetryPolicy
from serving.client.sync_client import Client

__all__ = [
    "Array",
    "AsyncClient",
    "CallOptions",
    "Classification",
    "Client",
    "ClientOptions",
    "Compression",
    "Features",
    "Prediction",
    "Regression",
    "RetryPolicy",
    "ScoredClass",
    "Signature",
    "TensorSpec",
    "Tls",
    "VersionStatus",
    "signature_of",
]
