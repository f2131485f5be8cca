"""Who a caller is, and what it may do: principals, tokens, ACLs, and the authorizer that decides by them. Knows no
service, and nothing of etcd."""
