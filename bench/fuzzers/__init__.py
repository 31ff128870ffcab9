"""Fuzzers with a seed: random bytes for the parts that read what others send."""
