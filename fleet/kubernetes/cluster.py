"""The part of Kubernetes' API that a coordinator uses, and its errors. Objects are dicts of their JSON."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

Object = Mapping[str, Any]


class ApiFailed(OSError):
    """A call has failed, with an HTTP status. If that is 0, no answer came, and the call may have taken effect."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Conflict(ApiFailed):
    """The object has changed since it was read, or exists already. Nothing was changed."""


class Gone(ApiFailed):
    """The version of a watch is too old, so the pods must be listed again."""


class Cluster(Protocol):
    """The objects of one namespace. Thread-safe. Every method raises ApiFailed.

    The methods `replace_…` take an object with the `resourceVersion` that was read. They raise Conflict if
    the object has another `resourceVersion` by now.
    """

    @property
    def namespace(self) -> str: ...

    def read_lease(self, name: str) -> Object | None:
        """Reads the Lease; None if there is none."""
        ...

    def create_lease(self, lease: Object) -> Object: ...
    def replace_lease(self, lease: Object) -> Object: ...

    def read_config_map(self, name: str) -> Object | None:
        """Reads the ConfigMap; None if there is none."""
        ...

    def create_config_map(self, config_map: Object) -> Object: ...
    def replace_config_map(self, config_map: Object) -> Object: ...

    def list_pods(self, selector: str) -> tuple[list[Object], str]:
        """Lists the pods, and the version of that list, from which `watch_pods` goes on."""
        ...

    def watch_pods(self, selector: str, version: str, seconds: int) -> Iterator[Object]:
        """Yields the events since `version`, for `seconds`. Raises Gone if that version is too old."""
        ...

    def create_event(self, event: Object) -> None: ...
