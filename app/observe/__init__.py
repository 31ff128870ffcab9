"""Observation from outside: metrics, traces, logs.

Runs in the gateway process, on its event loop. May import the engine and the ground.
"""
