"""Quotas of clients and of replication: who is charged, by which rate, and how long it has to wait. Pure: the time is
an argument. Knows no service."""
