"""The HTTP server, its connections and its probes."""
