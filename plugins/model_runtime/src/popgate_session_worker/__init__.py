"""A session's half in the device process.

`engine.worker.device_service` imports it for the first session. It may import
`popef_io` and the modules of `engine`, except those of clients.
"""
