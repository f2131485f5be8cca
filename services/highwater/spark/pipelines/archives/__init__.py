"""Archives: written by `archive`, read by `replay`, `rollup` and `verify`, as Delta tables or plain Parquet files.

May import `command/`, `session/`, `files/` and `typed_values/`.
"""
