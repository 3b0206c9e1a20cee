"""Swaps versions over many servers in waves: pure decisions, and the coordinator that carries them out.

`fleet` builds on `serving`. A server imports nothing of `fleet`; only the command `millpond fleet` does.
"""
