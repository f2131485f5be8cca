"""Faults on purpose: `deck` draws them by a seed, `injection` makes them, `run` waits until all is back."""
