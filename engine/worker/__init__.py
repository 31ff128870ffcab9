"""The device process: its service, scheduling, batching and replicas.

Runs in the device process and nowhere else; nothing outside imports it, it is started
as a new Python that runs `device_process`. May import `session.worker`, `model`,
`programs`, `transport` and the ground.
"""
