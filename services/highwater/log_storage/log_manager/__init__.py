"""All logs of a broker in its log directories: opened, made, moved, deleted and closed, their checkpoints in step.

May import `recovery/`, `log/` and the rooms below it.
"""
