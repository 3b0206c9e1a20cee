"""The settings of the load tests, from one variable of the environment. They are not for serving."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from serving.base.errors import InvalidConfig

LAB_VARIABLE = "MILLPOND_LAB"
"""The variable, like `tensorflow_runtime=stock tensorflow_load_pool=true`."""


@dataclass(frozen=True, kw_only=True)
class LabSettings:
    """The settings, with the values that servers have outside the load tests."""

    # TensorFlow's own device, allocator, restore and pools, as the control of measurements.
    is_stock: bool = False
    # Restore and init run on a pool of their own. It belongs to the stock runtime.
    has_load_pool: bool = False
    # The longest time that a load or unload waits for a core while requests use them all, before it gets
    # the usual priority: longer than a burst of requests, and short beside a load. 0: no limit.
    load_patience_seconds: float = 2.0


NO_LAB = LabSettings()
"""The settings outside the load tests."""


def lab_settings(environment: Mapping[str, str]) -> LabSettings:
    """Reads the variable. Raises InvalidConfig if it names another setting or has a wrong value."""
    values: dict[str, Any] = {}
    for item in environment.get(LAB_VARIABLE, "").split():
        name, _, text = item.partition("=")
        try:
            field, read = _ROWS[name]
            values[field] = read(text)
        except (KeyError, ValueError):
            raise InvalidConfig(
                f"{LAB_VARIABLE}: {item!r} is not a setting of the load tests; unset the variable to serve"
            ) from None
    if values.get("has_load_pool") and not values.get("is_stock"):
        raise InvalidConfig(
            f"{LAB_VARIABLE}: tensorflow_load_pool belongs to tensorflow_runtime=stock; Millpond's own "
            "runtime loads on the loader's thread"
        )
    return LabSettings(**values)


def _choice(**values: bool) -> Callable[[str], bool]:
    return values.__getitem__


# The field of each name in the variable, and the reader of its value.
_ROWS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "tensorflow_runtime": ("is_stock", _choice(stock=True, millpond=False)),
    "tensorflow_load_pool": ("has_load_pool", _choice(true=True, false=False)),
    "load_patience_seconds": ("load_patience_seconds", float),
}
