"""Measuring and proving programs: each is run as `python -m bench.<name>`."""
