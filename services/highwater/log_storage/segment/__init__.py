"""One segment: its file of batches, its two indexes, the ways to read it, and what is known to be damaged in it.

May import `files/`.
"""
