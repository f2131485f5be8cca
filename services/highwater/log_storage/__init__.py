"""log-storage: the segments, indexes and checkpoints on a broker's volumes. Nobody else opens them, unless
through `inspect/`.

The rooms, each of which imports only what stands before it: `files/`, `segment/`, `producers/`, `log/`, `recovery/`,
`log_manager/`, `scrubbing/`; then, side by side, `compaction/` and `server/`, which `service` ties together. `inspect/`
stands beside `log/`, but for `recovered_logs`, which stands on `log_manager/`. What all of them speak of is here at the
top: `config`, `errors`, `fence`, `clock`, `throttle`, `thread_work`.
"""
