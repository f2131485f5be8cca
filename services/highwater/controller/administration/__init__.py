"""What clients ask the controller for: topics, partitions, configurations, elections; and the gRPC service.

May import every other room; nothing but `service` imports this one.
"""
