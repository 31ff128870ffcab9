"""May rows of different requests be mixed? Proofs over the graph, and checks.

Runs in the command line and in the process that compiles. May import the rest of
`compiler`, `programs` and the ground.
"""
