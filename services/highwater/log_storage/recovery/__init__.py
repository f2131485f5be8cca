"""Opening a log's directory after a clean or an unclean stop, and how far that is.

May import `log/` and the rooms below it.
"""
