"""A session's half in the device process: its programs and their host streams.

Runs in the device process. May import `model`, `programs`, `transport` and the ground.
"""
