"""The LogStorage service: protobuf in, protobuf out, and the order in time of what its calls do to a log.

May import `log_manager/` and the rooms below it, and `scrubbing/`.
"""
