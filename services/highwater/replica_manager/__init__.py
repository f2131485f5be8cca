"""One broker's replicas: leadership, ISR, high watermarks, waiting produces and fetches, and the client-facing API.

The decisions are pure (`partition`, `replica`, `isr`, `purgatory`, `tail_cache`); the server around them moves bytes.
"""
