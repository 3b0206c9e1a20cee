"""gRPC's service config for stock clients of a fleet. Pure.

Millpond's client has the same policy built in. A stock client gets it as a channel option, or from DNS.
"""

import json
from typing import Any

from serving.base.compiled_protos import INFERENCE_SERVICE
from serving.client.service_config import RetryPolicy, service_config

RETRY_TOKENS = {"maxTokens": 1_000, "tokenRatio": 0.1}
"""gRPC's limit of retries: more than 500 failures beyond a tenth of the successes end them until calls
succeed again. 1,000 is gRPC's highest number. With a small one, the requests that a killed server had
in flight would already end the retries."""

# KServe's methods that change nothing on a server.
_KSERVE_METHODS = ("ModelInfer", "ModelMetadata", "ModelReady", "ServerLive", "ServerReady")


def stock_service_config(health_service: str = "") -> dict[str, Any]:
    """Returns the config: turns among healthy servers, and another attempt for what none has answered.

    `health_service` chooses the health that decides: "" is the server's, a name is a model's.
    """
    config: dict[str, Any] = json.loads(
        service_config(RetryPolicy(), is_balanced=True, health_service=health_service)
    )
    kserve = [{"service": INFERENCE_SERVICE, "method": method} for method in _KSERVE_METHODS]
    config["methodConfig"][0]["name"] += kserve
    return {**config, "retryThrottling": RETRY_TOKENS}


def dns_text(config: dict[str, Any]) -> str:
    """Returns the TXT record of `_grpc_config.NAME` with the config, as gRPC's DNS resolver reads it.

    A character string of a TXT record has at most 255 bytes; servers of names split longer ones.
    """
    document = json.dumps([{"serviceConfig": config}], separators=(",", ":"))
    return f"grpc_config={document}"
