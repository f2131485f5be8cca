"""The edge: gRPC servicers, streams and listeners. Protobuf messages are turned into values here and back.

May import every other room; nothing but `service` imports this one.
"""
