"""Fleets on a Ray cluster: `millpond.fleet.deploy(text)`. Needs the extra "ray"."""

from fleet.ray import Deployment, deploy

__all__ = ["Deployment", "deploy"]
