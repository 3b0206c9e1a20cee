"""gRPC's service config for stock clients of a fleet. Pure.

Millpond's own client has this policy built in. Any other client gets it as a channel option, or from DNS.
"""

import json
from typing import Any

from serving.base.compiled_protos import INFERENCE_SERVICE
from serving.client.service_config import RetryPolicy, service_config

RETRY_TOKENS = {"maxTokens": 1_000, "tokenRatio": 0.1}
"""The limit that gRPC sets on the retries of a channel.

Each failure takes a token away, and each success gives a tenth of a token back. A channel with half of its
tokens or fewer repeats no call. 1,000 is the highest number that gRPC allows. It is needed, because with few
tokens the requests that one killed server had in flight would already stop all retries.
"""

# KServe's methods that change nothing on a server.
_KSERVE_METHODS = ("ModelInfer", "ModelMetadata", "ModelReady", "ServerLive", "ServerReady")


def stock_service_config(health_service: str = "") -> dict[str, Any]:
    """The config: requests go to the healthy servers in turn, and a request without an answer is repeated.

    `health_service` is the model whose health counts; "" for the health of the whole server.
    """
    config: dict[str, Any] = json.loads(
        service_config(RetryPolicy(), is_balanced=True, health_service=health_service)
    )
    kserve = [{"service": INFERENCE_SERVICE, "method": method} for method in _KSERVE_METHODS]
    config["methodConfig"][0]["name"] += kserve
    return {**config, "retryThrottling": RETRY_TOKENS}


def dns_text(config: dict[str, Any]) -> str:
    """The TXT record of `_grpc_config.NAME` with the config, as gRPC's DNS resolver reads it.

    A string of a TXT record has at most 255 bytes, so name servers split this text into several strings.
    """
    document = json.dumps([{"serviceConfig": config}], separators=(",", ":"))
    return f"grpc_config={document}"
