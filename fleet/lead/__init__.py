"""One coordinator at a time: its term, its state, its calls to servers, and the interfaces of an engine."""
