#!/bin/sh
# The Python of Spark's workers, see worker_python.py: without the zip of PySpark's sources in front of its path.
PYTHONPATH=$(printf %s "$PYTHONPATH" | sed 's#[^:]*/pyspark\.zip:\{0,1\}##g') exec "$HIGHWATER_WORKER_PYTHON" "$@"
