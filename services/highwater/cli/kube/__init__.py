"""`highwater kube …`: an installed release of the Helm chart, looked at and broken from an operator's laptop."""
