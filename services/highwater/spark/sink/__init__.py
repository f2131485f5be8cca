"""The write side of `format("highwater")`, of batches and streams: `writer` sends the rows of a task, `write_rows`
divides them by topic and partition, `task_writes` says what a task wrote.

May import `options/` and `worker/`.
"""
