"""How many requests may be in flight: what the flags and the models' settings come to.

The data plane counts and refuses (`native/servable/admission.h`).
"""

from collections.abc import Iterable

from serving.config.server_config import ModelConfig


def model_limits(models: Iterable[ModelConfig], default: int) -> dict[str, int]:
    """Requests in flight that each model may have, by name; one without a limit is not in it.

    `default` is that of models whose settings name none; 0: none.
    """
    limits = {model.name: model.settings.max_in_flight_requests or default for model in models}
    return {name: limit for name, limit in limits.items() if limit > 0}
