"""The shares of a broker's callers: quotas, as they are configured, and turns of the event loop.

May import `replicas` and what comes before it."""
