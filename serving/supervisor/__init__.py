"""The supervisor of `millpond serve --supervise`: a small parent process, which does not load TensorFlow."""
