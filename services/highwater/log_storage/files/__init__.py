"""The small files of a log directory, whole or not at all after a crash: checkpoints, the fence journal, the boot
record, `meta.properties`, `partition.metadata`, the marks of a move; and the volume they are on.

May import the values at the top of `log_storage/` (`errors`, `fence`), no other room.
"""
