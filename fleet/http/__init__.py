"""The HTTP of a coordinator: status, operations, metrics and the page."""
