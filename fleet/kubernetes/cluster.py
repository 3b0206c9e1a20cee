"""The part of Kubernetes' API that a coordinator uses, and its errors. Objects are dicts, as in its JSON."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

Object = Mapping[str, Any]


class ApiFailed(OSError):
    """A call that failed, with the HTTP status. 0: no answer came, so the call may have taken effect."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Conflict(ApiFailed):
    """The object has changed since it was read, or exists already. Nothing was changed."""


class Gone(ApiFailed):
    """The version of a watch is too old, so the pods must be listed again."""


class Cluster(Protocol):
    """The objects of one namespace. Thread-safe. Every method raises ApiFailed.

    `replace` takes an object with the `resourceVersion` that was read, and raises Conflict if the object
    has another one now.
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
        """Lists the pods, and the version of the list, from which a watch continues."""
        ...

    def watch_pods(self, selector: str, version: str, seconds: int) -> Iterator[Object]:
        """Yields the events since `version` for the given time. Raises Gone too."""
        ...

    def create_event(self, event: Object) -> None: ...
