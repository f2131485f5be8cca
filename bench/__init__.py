"""`make bench`: how fast a laptop's cluster is; `make bench-kafka`: the same work on Apache Kafka beside it."""
