#!/bin/sh
# Manifests for TensorFlow Serving's image start the server by this name, with the same flags.
exec millpond serve --supervise "$@"
