"""The cluster's controller: of those that run, the one that holds the key in etcd elects leaders and instructs brokers.

The rooms, each of which may import those above it in this list, and nothing of those below:

    state_machines/  `Cluster`: brokers, topics, replicas and elections; pure, one event in, actions out
    topics/          what a new topic, more partitions or a changed configuration must be; pure
    sending/         instructions to brokers: what is outstanding, sent again, and as protobuf
    term/            one term in office: the active controller, its writes to etcd, the fast path for dead brokers
    administration/  what clients ask for, and the gRPC service

`service` runs one term after the other, `process` is the command.
"""
