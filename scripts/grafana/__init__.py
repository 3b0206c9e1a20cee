"""What the Grafana dashboards show (overview, swap, memory), and how it becomes JSON (model)."""
