"""Reading segments to find out what of them is damaged: in the background, and where a read met damage.

May import `log_manager/` and the rooms below it.
"""
