"""Files of a pipeline in any file system that Hadoop knows: leases, and offsets that are written ahead.

May import `session/`.
"""
