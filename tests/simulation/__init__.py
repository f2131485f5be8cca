"""Whole clusters under seeded faults: the production decision code, driven by a scheduler of virtual time.

`python -m tests.simulation --seed 7` runs one. `world.py` puts a cluster together; each other file is one of its parts:
the thin shells of the servers, their surroundings (etcd, network, disks), the faults, and the invariants.
"""
