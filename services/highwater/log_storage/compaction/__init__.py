"""Compaction of logs (seeds §5.4): which log and which segments, the map of keys, the pass over the files in a
process of its own, and the swap."""
