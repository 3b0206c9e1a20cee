"""Loads and unloads versions: arenas, memory, pace and priority of a load."""
