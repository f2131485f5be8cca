"""Requests of clients to the controller: topics, partitions, configurations, elections; and the gRPC service.

May import every other room; nothing but `service` imports this one.
"""
