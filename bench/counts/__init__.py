"""Counts of one request in each encoding, and of a swap: `python -m bench.counts`."""
