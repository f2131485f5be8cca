"""The edge: gRPC servicers, streams and listeners. Protobuf messages are turned into values here and back; what clients
ask of log directories and batches comes from log-storage as it is.

May import every other room; nothing but `service` imports this one.
"""
