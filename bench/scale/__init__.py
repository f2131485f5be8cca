"""Costs of thousands of partitions that stand idle, and of many clients: `make bench-scale`."""
