"""Archives of topics under failures drawn at random: see `__main__`."""
