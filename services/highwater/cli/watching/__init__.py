"""`highwater metrics` and `highwater top`: a running cluster, by its metrics and by what it answers."""
