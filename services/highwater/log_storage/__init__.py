"""log-storage: the segments, indexes and checkpoints on a broker's volumes. Nobody else opens them (DESIGN §7)."""
