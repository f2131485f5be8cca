"""Principals of callers, and what they may do: tokens, ACLs, and the authorizer that decides by them. Knows no
service, and nothing of etcd."""
