"""Programs that run beside the services in Kubernetes: how a member of etcd starts, hooks and checks of the Helm
chart."""
