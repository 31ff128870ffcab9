"""Proofs over the graph, and checks, that rows of different requests may be mixed.

Runs in the process of the command line and in the process that compiles. May import the
rest of `compiler`, `programs` and the ground.
"""
