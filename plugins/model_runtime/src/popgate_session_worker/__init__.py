"""A session's half in the device process.

Imported there for the first session (`engine.worker.device_service`). May import of
PopGate: `engine` with its modules, but nothing of a client, and `popef_io`.
"""
