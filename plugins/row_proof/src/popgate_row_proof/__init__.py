"""Proofs over an ONNX graph that rows of different requests may be mixed.

A plugin of PopGate (docs/how-to/write-a-plugin.md), for models whose inputs do not name
a common number of rows. Runs in the process that compiles. May import of PopGate:
`engine`.
"""
