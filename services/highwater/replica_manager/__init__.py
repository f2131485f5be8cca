"""One broker's replicas: leadership, ISR, high watermarks, waiting produces and fetches, and the client-facing API.

The rooms, each of which may import those above it in this list, and nothing of those below:

    partition/   decisions about one partition: pure, one event in, actions out
    storage/     the way to this broker's log-storage: appends and fences, over `log_storage_client`
    replicas/    `ReplicaManager`: the replicas that are hosted here, and the carrying out of what they decide
    membership/  this broker as a member of the cluster: registration, readiness, controlled shutdown, the controller
    requests/    what a request does, without protobuf: produce, fetch, offsets, the controller's instructions
    server/      the edge: servicers, streams, listeners; protobuf comes no further

`service` wires them together, `process` is the command.
"""
