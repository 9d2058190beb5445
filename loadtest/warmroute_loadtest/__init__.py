"""Workloads, benchmarks and the demo."""
