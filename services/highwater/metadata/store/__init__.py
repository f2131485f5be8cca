"""etcd itself: its members and connections, transactions, leases and watches, and what its errors mean. Knows no key.

Imports nothing of `metadata/`.
"""
