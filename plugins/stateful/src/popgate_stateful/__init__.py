"""Stateful models: the gateway keeps something between their runs.

A plugin of PopGate (docs/how-to/write-a-plugin.md). `sequences` keeps the state from
one request to the next (``[sequence]`` of config.toml), `steps` runs a request step by
step (``[responses]``), and `generators` runs Python models that yield responses. `kind`
is what the server asks for. Import only `app`, `engine` and `popef_io` of PopGate.
"""
