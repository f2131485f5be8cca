"""What runs beside the services in Kubernetes: how a member of the chart's etcd starts. Imports `metadata`, `rpc` and
`telemetry`, and nothing of the services."""
