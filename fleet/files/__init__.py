"""The files that a fleet keeps for clients and proxies: the registry, and HAProxy's configuration."""
