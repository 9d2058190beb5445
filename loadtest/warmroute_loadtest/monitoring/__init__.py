"""The Grafana dashboard: what writes it, what reads it, and a picture of it from a real Prometheus."""
