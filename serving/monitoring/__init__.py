"""What Millpond shows of itself: metrics, the timeline of swaps, the live page."""
