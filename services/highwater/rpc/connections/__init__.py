"""Connections between processes: channels, and the TLS that they and servers speak."""
