"""Compaction of logs: the scheduler that chooses a log (`cleaner_scheduler`), the pass over its files in a process of
its own (`cleaner_pass`), and the swap of its cleaned segments into the log (`segment_swap`).

May import `log_manager/` and the rooms below it, and `scrubbing/`.
"""
