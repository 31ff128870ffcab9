"""Calls of Python models to others: a device process as a client of other devices.

Runs in the device processes of Python models. May import `runner`, `devices`,
`programs`, `transport` and the ground.
"""
