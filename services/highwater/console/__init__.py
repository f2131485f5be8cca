"""The part that commands and pipelines share: where they print, tables and JSON lines, and the status that they end
with."""

INTERRUPTED = 130
"""The exit status of a command that Ctrl-C has ended."""
