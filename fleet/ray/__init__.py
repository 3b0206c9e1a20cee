"""A fleet on a Ray cluster: actors start the servers, and one actor decides. Needs the extra "ray".

Requests never reach Ray: clients have the addresses of the servers themselves.
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
