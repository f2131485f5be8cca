"""Keys that live as long as the process that took them: a broker's registration, the elected controller.

May import `schema/` and `store/`.
"""
