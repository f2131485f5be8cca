"""Progress of queries: the lag of a streaming one, the reports of reading tasks, and the bar that shows them.

May import `offsets/`.
"""
