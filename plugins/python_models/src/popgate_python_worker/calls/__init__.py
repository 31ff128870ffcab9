"""Calls from Python models to other models. The device process acts as a client of
other devices.
"""
