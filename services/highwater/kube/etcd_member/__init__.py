"""The start of one member of etcd in Kubernetes: `python -m highwater.kube.etcd_member`, an init container.

`start` is one run of it: it asks and changes the cluster (`membership`), asks the other init containers (`peer_word`)
and decides on a new cluster (`first_start`, pure). It imports connections, TLS and errors of `highwater.metadata`, and
nothing of the services.
"""
