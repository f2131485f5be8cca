"""Fuzzing: what no client of ours would send, at every RPC of every server; and bytes that no writer of ours would
leave, in every file, batch and etcd value.

    python -m tests.fuzz --seconds 600                    # a night's run: prints its seed
    python -m tests.fuzz --replay build/fuzz/FINDING.json  # what it has found, again

`rpcs` lists the calls from the descriptors of the contracts, `messages` makes their requests by grammar, `calls` sends
them, `cluster` is what they are sent to, and `oracle` watches it. `readers` are all that read bytes.

**What is left alone.** The internal listeners, log-storage and the fetcher trust those who reach them: a request there
can do harm by right (a StopReplica, a fence under a higher epoch, a fake controller). The oracle wants to know of harm
that nobody has a right to. So beside the topics that are fuzzed (`prey-0`, ...) there is one, `steady`, of the other
clients:

- what ReplicaControl, LogStorage and the append socket are asked names topics that are fuzzed, or none that exist;
- nothing deletes, configures, elects or extends `steady`, cuts its records off or produces to it;
- what claims to come from a controller has at most the present controller's epoch, no sequence above 0, is never
  `full`, and gives no live broker an address;
- a ControlledShutdown is never of a broker epoch that is live, and a replica's fetch never of fetcher 0, whose session
  is the follower's own;
- the group `steady` is named by its own members alone;
- a list in what peers ask has 10,001 elements at most: there is no limit to it but what a broker hosts.

All else of these requests is drawn as it comes. Clients' listeners give no such rights, and are asked everything but
what `steady` is kept out of."""
