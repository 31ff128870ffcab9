"""A model file from the engine's view: anchors, batch plan, layout, checks of requests.

Runs in the client and the device process. May import `programs`, `transport` and
the ground.
"""
