"""Spans of OpenTelemetry for requests to models.

A plugin of PopGate (docs/how-to/write-a-plugin.md). Runs in the processes that accept
connections. May import of PopGate: `app`, `engine`.
"""
