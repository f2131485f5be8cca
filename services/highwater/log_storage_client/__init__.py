"""The client of a broker's log-storage, for the processes beside it: replica-manager and fetcher.

    append_stream   the one Append stream of a process: messages out, answers back in their order, opened again
    append_socket   the connection that it is over, where log-storage has a socket for it; else it is a gRPC call's
    client          the other calls
    conversions     protobuf to and from the values; an Append message around the batches in it
    values          what it is told and what it answers

One class drives the stream for both. What differs is given to it: which message is next (the replica-manager gathers
appends until the stream is free to take them, the fetcher's are whole when they are handed over), and when it counts as
connected (`greets`).

May import what every package may, and no service.
"""
