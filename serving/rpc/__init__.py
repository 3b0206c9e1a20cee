"""The gRPC methods that Python answers, and the transport's settings."""
