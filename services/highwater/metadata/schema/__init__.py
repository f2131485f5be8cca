"""The keys, the values that stand under them, and how the cluster is read from both. Pure.

May import `store/transactions`, which is values too.
"""
