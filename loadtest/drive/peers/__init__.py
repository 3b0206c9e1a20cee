"""Servers made with other packages, each run by the Python of its own virtual environment.

Each module is `python -m loadtest.drive.peers.NAME EXPORT PORT [batch]`: it serves `POST /predict` with
TensorFlow Serving's body in rows, as the package's documentation advises. They import nothing of this
repository but `peer_model`.
"""
