"""The shares of a broker's callers: quotas, as they are configured.

May import `replicas` and what comes before it."""
