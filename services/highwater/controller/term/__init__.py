"""One term in office: the active controller, which feeds `Cluster` and carries out its actions, the writes to etcd, and
the fast path that notices dead brokers.

May import `state_machines/` and `sending/`.
"""
