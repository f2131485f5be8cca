"""Commands that look at a running cluster and change what is in it: topics, configurations, users, replicas."""
