"""Shows what the server does: metrics, the timeline of swaps, traces, the live page."""
