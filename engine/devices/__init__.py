"""The client's half of a device: the pool, attaching, and starting and ending its
process.

Runs in the client process. May import `transport` and the ground.
"""
