"""Swaps versions over many servers in waves: pure decisions, and the coordinator around them.

A package beside `serving`, which imports nothing of it but the entry of `millpond fleet`.
"""
