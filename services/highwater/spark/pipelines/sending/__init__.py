"""Records sent into topics each once, by `mirror` and `replay`: what of a repeated step is there already.

May import `archives/`.
"""
