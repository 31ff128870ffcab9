"""The client's half of a device: the pool, attaching, and the life of its process.

Runs in the client process. May import `transport` and the ground.
"""
