"""Export by OpenTelemetry's protocol, OTLP: spans and metrics, as protobuf over HTTP.

Over HTTP, not gRPC: a channel of the exporter would outlive the clients of an application, and a process in which gRPC
runs cannot fork (`rpc/process/forking.py`). Needs the extra `otel`, which is the protocol's messages and no more.
"""
