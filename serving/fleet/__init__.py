"""Swaps versions over many servers in waves. A server that runs alone imports nothing of it."""
