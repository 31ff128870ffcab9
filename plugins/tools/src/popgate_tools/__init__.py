"""Commands for models and running servers: pack, infer, batch, perf, tune, top, …

A plugin of PopGate (docs/how-to/write-a-plugin.md). Runs in the process of a command.
May import of PopGate: `app`, `engine`, `popef_io`, `popgate_client`.
"""
