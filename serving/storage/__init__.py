"""Object storage: copies the versions of a remote base path to a local directory that a source watches."""
