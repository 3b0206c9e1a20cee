"""The actors of a run: servers, models, clients and people."""
