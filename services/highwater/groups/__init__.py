"""Consumer groups: how a coordinator decides (docs/replication.md, 11). Pure.

`GroupShard` is what a broker holds for each partition of `__consumer_offsets` that it leads. The server around it

1. replays the partition's records (`replay`), then starts the shard's timers (`start`), and answers
   COORDINATOR_LOAD_IN_PROGRESS until it has;
2. hands it requests (`handle`), the passing of time (`tick`, at `next_due_ms`) and changes of topics
   (`topics_changed`), and appends the records of each `Outcome` in order;
3. lets answers and pushes out when the high watermark has passed the record that the outcome names;
4. drops the shard when an append fails or the leadership ends, closes its sessions, and begins again with 1.

What a shard knows of groups changes by records alone, so a shard that has replayed them knows the same. What is not in
records dies with the shard, and may: timers, and who has acknowledged what.
"""
