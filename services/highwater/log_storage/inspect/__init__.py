"""Reading the files of logs beside the log-storage that may be using them, or without one. The public face of
`log_storage/` for `highwater log`, the pipeline `audit` and the inventory of volumes whose etcd is lost. Nothing is
written, but by `recovered_logs`, which opens logs as log-storage does.

May import `files/`, `segment/` and `producers/`; `recovered_logs` also `log_manager/`.
"""
