"""Speeds of consumer groups: a member that comes, goes or dies, commits, reading in a group, and many idle groups."""
