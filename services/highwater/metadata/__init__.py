"""All that is kept in etcd, and the only package that knows it (DESIGN §5).

`store` asks etcd; `keys` and `models` say what stands there; the rest are the things that Highwater does with it:
registrations, elections, partition states, topics, producer ids, and the cluster as a stream of changes.
"""
