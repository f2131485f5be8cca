"""The service that copies from leaders into this broker's log-storage (RULES 4)."""
