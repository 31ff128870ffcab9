"""Compile the hot path: `make compiled` (docs/how-to/tune.md)."""
