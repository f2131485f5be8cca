"""Decisions about topics that clients ask for: names, partition counts, assignments, configuration values. Pure.

Imports no other room of the controller.
"""
