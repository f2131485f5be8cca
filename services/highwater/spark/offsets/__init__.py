"""Offsets of topics: ranges of them, those in the checkpoint of a streaming query, and those that a cluster answers.

May import `options/`.
"""
