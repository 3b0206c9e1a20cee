"""Millpond's public names: clients of a model server, and a server inside of a Python program."""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serving.client import AsyncClient, Client
    from serving.server.model_server import ModelServer

__all__ = ["AsyncClient", "Client", "ModelServer", "__version__"]

__version__ = version("millpond")


def __getattr__(name: str) -> Any:
    # Imported at the first use, so that a program that only asks a server does not import the server, and
    # the other way round.
    if name in ("AsyncClient", "Client"):
        from serving import client

        return getattr(client, name)
    if name == "ModelServer":
        from serving.server.model_server import ModelServer

        return ModelServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
