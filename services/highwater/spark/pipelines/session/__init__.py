"""The Spark session of a pipeline: its settings, the jars of Delta Lake and S3, and what it raises as one sentence.

May import `command/`.
"""
