"""Consumer groups: the coordinator's shards on this broker, one for each partition of `__consumer_offsets` that it
leads, with their log, their members' streams and the topics that they hear of. What a shard decides is in
`highwater.groups`."""
