"""The HTTP server of the rare paths: probes, metrics, the page."""
