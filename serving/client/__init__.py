"""Clients of a model server. They take and return numpy arrays, and do not import TensorFlow."""

from serving.client.async_client import AsyncClient
from serving.client.channels import Compression, Tls
from serving.client.features import Features
from serving.client.messages import signature_of
from serving.client.results import (
    Array,
    Classification,
    Prediction,
    Regression,
    ScoredClass,
    Signature,
    TensorSpec,
    VersionStatus,
)
from serving.client.retries import RetryPolicy
from serving.client.rotation import Health
from serving.client.sync_client import Client

__all__ = [
    "Array",
    "AsyncClient",
    "Classification",
    "Client",
    "Compression",
    "Features",
    "Health",
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
