"""What may be configured while the cluster runs, and which value counts. Pure; every package may import it.

etcd holds the configurations of the cluster, of brokers, clients and users (`metadata/`); the controller checks and
writes them, services take over what concerns them.
"""
