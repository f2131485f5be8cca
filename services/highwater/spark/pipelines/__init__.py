"""Whole jobs on Spark, each a module that `spark-submit` runs and a `highwater pipeline NAME` command.

A module holds its options (a frozen dataclass on top of those of `command.pipeline_options`), `run(options)` for use
from Python, `command` for `highwater pipeline`, and `main(argv)` for `spark-submit`. Importing it does not import
PySpark.

The rooms, each of which may import those before it: `command`, `session`, `files`, `typed_values`, `running`,
`archives`, `sending`, `audits`, `rollups`. All of them may import the rest of `spark/`, which imports none of them.
"""
