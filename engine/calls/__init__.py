"""Calls from Python models to other models. The device process acts as a client of
other devices.

Runs in the device processes of Python models. May import `runner`, `devices`,
`programs`, `transport` and the ground.
"""
