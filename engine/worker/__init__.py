"""The device process: its service, scheduling, batching and replicas.

Runs in the device process only, and no other package imports it. The device process
starts as a new Python that runs `device_process`. May import `model`, `programs`,
`transport` and the ground.
"""
