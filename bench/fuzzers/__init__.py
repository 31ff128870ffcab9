"""Fuzzers with a seed: random bytes for the parts that read input of other programs."""
