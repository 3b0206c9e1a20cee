"""A fleet on a Ray cluster: one actor decides, and an actor for each server starts it. Needs the extra "ray".

Requests do not pass through Ray, because clients know the addresses of the servers.
"""

from serving.base.errors import FailedPrecondition

try:
    import ray as _ray
except ImportError as error:
    raise FailedPrecondition(
        "a fleet on Ray needs the package ray: pip install 'millpond[ray]'"
    ) from error

from fleet.ray.deployment import Deployment, deploy

__all__ = ["Deployment", "deploy"]

del _ray
