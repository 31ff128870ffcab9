"""Models in this process: `popgate.ModelRunner`, and the commands `run` and `bench`.

A plugin of PopGate (docs/how-to/write-a-plugin.md). Runs in the process of a command.
May import of PopGate: `app`, `engine`, `popef_io`, `popgate_client`, `popgate_tools`.
"""
