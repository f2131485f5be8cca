"""Whole clusters under seeded faults: the production decision code, driven by a scheduler of virtual time.

`python -m tests.simulation --seed 7` runs one. `world.py` puts a cluster together; each other file is one of its parts:
the thin shells of the servers, their surroundings (etcd, network, disks), the faults, and the invariants.

Production code here: `Partition` and `Leadership`, `ReplicaManager`, `HostedPartition`, `AppendPipeline`, the
purgatories, the tail cache, `FetchHandler`'s answers to replicas; `Follower` and `FetchOrder`; `Cluster`, elections,
`Outbox`, `FastPath`; the fence, the epoch cache and the producer states, and whether a tail is lost; the SDK's
`PartitionQueue`; and in some of the seeds whole coordinators of groups (`groups/`). Shells of the simulation's own:
processes, calls and streams, registration, LeaderAndIsr, etcd, and a log in memory.

Not simulated: DeleteRecords and anything else that raises a log start, retention, compaction, storage errors that end
before log-storage does, several log directories, several fetchers a leader, changes of assignment, compaction of etcd's
history.
"""
