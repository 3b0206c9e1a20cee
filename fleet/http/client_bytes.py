"""The bytes that connections hold for their clients, as their server counts them."""

from typing import Protocol


class ByteShare(Protocol):
    """The bytes that one holder has taken of a budget."""

    def resize(self, bytes: int) -> bool:  # noqa: A002 (the data plane's name)
        """Changes the share to `bytes`. Returns False, and changes nothing, if too few are left."""
        ...

    @property
    def bytes(self) -> int: ...


class ByteBudget(Protocol):
    """The memory that clients may take together."""

    def call_share(self) -> ByteShare:
        """Makes an empty share for calls: it may exceed the limit a little."""
        ...

    def connection_share(self) -> ByteShare:
        """Makes an empty share for probes and connections: it may exceed the limit further."""
        ...
