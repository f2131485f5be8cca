"""Whole jobs on Spark, each a module that `spark-submit` runs and a `highwater pipeline NAME` command.

A module holds its options (a frozen dataclass on top of those of `common`), `run(options)` for use from Python,
`command` for `highwater pipeline`, and `main(argv)` for `spark-submit`. Importing it does not import PySpark.
"""
