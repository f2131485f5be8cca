"""The options of `format("highwater")` as users give them: parsed, checked, and as settings of the SDK's clients. Pure.

May import `values/`, and `errors` and `schema`, which every room may.
"""
