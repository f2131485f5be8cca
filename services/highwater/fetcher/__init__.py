"""One broker's replica fetchers: copies from leaders what its replica-manager says to follow, into its log-storage.

`follower/` decides, and is pure; the files here connect, send and receive. `service` wires them together, `process` is
the command.
"""
