"""Reading the files of logs beside the log-storage that may be using them, or without one; nothing is written. The
public face of `log_storage/` for `highwater log` and the pipeline `audit`.

May import `files/`, `segment/` and `producers/`.
"""
