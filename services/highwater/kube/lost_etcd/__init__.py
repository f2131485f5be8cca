"""The metadata that etcd held, made again from a backup and from the brokers' volumes. `choice` and `plan` decide, and
are pure."""
