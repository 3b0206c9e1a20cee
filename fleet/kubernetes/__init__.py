"""A fleet of pods: servers by a label selector, one coordinator by a Lease, the state in a ConfigMap.

Needs the extra "kubernetes"; only `client.py` imports the official client.
"""
