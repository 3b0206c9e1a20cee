"""The values of the control plane: states, settings, version selection, routing and policies."""
