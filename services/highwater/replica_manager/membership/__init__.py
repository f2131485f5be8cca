"""This broker as a member of the cluster: its registration and lease, readiness, controlled shutdown, the deletion of
logs that nobody wants, and what it asks of the active controller.

May import `replicas/` and what that may import.
"""
