"""`highwater …`: the command line and the cluster on a laptop."""
