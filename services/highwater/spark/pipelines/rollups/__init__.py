"""The parts of `rollup`: the query, and the records that it is computed of, from topics or from an archive.

May import `archives/`, `typed_values/` and the rooms before these.
"""
