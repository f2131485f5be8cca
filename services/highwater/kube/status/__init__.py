"""The state of a release: what Kubernetes says of its pods beside what its services say, and what is wrong with it.

`observation` asks, **`assembly`** puts together, **`findings`** says what is wrong; `values` are what they exchange.
"""
