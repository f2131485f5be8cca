"""A pipeline as a command: its options, declared once for `highwater pipeline`, `spark-submit` and Python, and SIGTERM.

Imports no other room of the pipelines.
"""
