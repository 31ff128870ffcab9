"""Compiling the hot path: `make compiled` (docs/compiled.md)."""
