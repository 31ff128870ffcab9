"""Commands for operators: validate, dump, devices, cache, key.

A plugin of PopGate (docs/how-to/write-a-plugin.md). Runs in the process of a command.
May import of PopGate: `app`, `engine`, `popef_io`.
"""
