"""The native data plane (`_native`) and the statistics that it reports."""
