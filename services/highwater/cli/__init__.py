"""`highwater …`: the command line and the cluster on a laptop."""

INTERRUPTED = 130
"""The exit status of a command that Ctrl-C has ended."""
