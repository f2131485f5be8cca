"""The read side of `format("highwater")`: `batch_reader` and `stream_reader` plan ranges of offsets on the driver,
`range_reader` reads one in a task.

May import `options/`, `offsets/`, `values/`, `progress/` and `worker/`.
"""
