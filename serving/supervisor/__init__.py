"""The supervisor of `millpond serve --supervise`: a small parent process without TensorFlow."""
