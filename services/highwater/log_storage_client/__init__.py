"""The client of a broker's log-storage, for the processes beside it: replica-manager and fetcher.

May import what every package may, and no service.
"""
