"""What runs beside the services in Kubernetes: how a member of the chart's etcd starts, hooks and checks of the chart."""
