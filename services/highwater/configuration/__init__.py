"""Configuration that changes while the cluster runs. Pure; every package may import it.

etcd holds the configurations of the cluster, of brokers, clients and users (`metadata/`); the controller checks and
writes them, services take over what concerns them.
"""
