"""The LogStorage service's edge: protobuf in, protobuf out. The rules are in the log and the fence."""
