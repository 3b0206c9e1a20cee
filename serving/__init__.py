"""Millpond: a TensorFlow model server. Python decides (this package), C++ serves (`serving.data_plane._native`)."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serving.server.model_server import ModelServer

__all__ = ["ModelServer"]


def __getattr__(name: str) -> Any:
    # On first use: whoever imports one module of this package should not pay for a client's needs.
    if name == "ModelServer":
        from serving.server.model_server import ModelServer

        return ModelServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
