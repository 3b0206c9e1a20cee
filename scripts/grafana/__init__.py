"""The content of the Grafana dashboards (overview, swap, memory), and its conversion to JSON
(model)."""
