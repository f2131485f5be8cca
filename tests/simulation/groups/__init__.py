"""Consumer groups under every fault of the simulation (RULES 11).

Production code here: `GroupCoordinator`, `HostedShard`, `ShardLog` and all below them, on an event loop of virtual time
(`loop.py`), over the simulated replica-managers and logs (`coordinator.py`). Members keep a client's duties and nothing
else (`member.py`), come and go (`population.py`), and what they see is held against RULES (`checks.py`).
"""
