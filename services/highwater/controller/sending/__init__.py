"""Instructions on their way to brokers: what each broker is still owed (`outbox`), when it is sent again
(`redelivery`), the calls (`sender`), and the protobuf messages (`wire`).

May import `state_machines/` and `topics/`.
"""
