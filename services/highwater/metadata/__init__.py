"""All that is kept in etcd, and the only package that knows it.

The rooms, each of which may import those above it in this list, and nothing of those below:

    store/   etcd: members, transactions, leases, watches, errors; knows no key
    schema/  the keys, and the values that stand under them: pure
    leases/  keys held as long as a process lives: registrations, the controller's election
    state/   topics, partition states, brokers and ids: read, watched, written by compare-and-swap

`local` is an etcd server of one's own.
"""
