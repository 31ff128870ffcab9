"""`ModelRunner`: replicas, their channels, service times, results and statistics.

Runs in the client process. May import `model`, `devices`, `programs`, `transport` and
the ground, but never `worker`.
"""
