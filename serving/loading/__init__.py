"""Loads and unloads versions: stages, arenas, memory and priority of a load."""
