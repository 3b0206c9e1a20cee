"""gRPC's service config for stock clients of a fleet. Pure.

Millpond's client has the same policy built in. A stock client gets it as a channel option, or from DNS.
"""

import json
from typing import Any

from serving.base.compiled_protos import INFERENCE_SERVICE
from serving.client.service_config import RetryPolicy, service_config

RETRY_TOKENS = {"maxTokens": 1_000, "tokenRatio": 0.1}
"""gRPC's limit of retries.

A failure takes a token away, and a success gives a tenth of a token back. A channel repeats no call while
it has half of its tokens or fewer. 1,000 is gRPC's highest number of tokens, because with few of them the
requests that a killed server had in flight would already end the retries.
"""

# KServe's methods that change nothing on a server.
_KSERVE_METHODS = ("ModelInfer", "ModelMetadata", "ModelReady", "ServerLive", "ServerReady")


def stock_service_config(health_service: str = "") -> dict[str, Any]:
    """The config: requests go to the healthy servers in turn, and a request that no server has answered is
    tried again.

    `health_service` chooses the health that counts: that of the server (""), or that of a model, by its
    name.
    """
    config: dict[str, Any] = json.loads(
        service_config(RetryPolicy(), is_balanced=True, health_service=health_service)
    )
    kserve = [{"service": INFERENCE_SERVICE, "method": method} for method in _KSERVE_METHODS]
    config["methodConfig"][0]["name"] += kserve
    return {**config, "retryThrottling": RETRY_TOKENS}


def dns_text(config: dict[str, Any]) -> str:
    """The TXT record of `_grpc_config.NAME` with the config, as gRPC's DNS resolver reads it.

    A string of a TXT record has at most 255 bytes; name servers split longer ones.
    """
    document = json.dumps([{"serviceConfig": config}], separators=(",", ":"))
    return f"grpc_config={document}"
