"""`--value-schema` and `--dead-letter`: values of records as structs, and the records whose values do not fit.

May import `command/` and `files/`.
"""
