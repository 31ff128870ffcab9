"""Ensembles: models that are graphs of other models (``[ensemble]`` of config.toml).

A plugin of PopGate (docs/how-to/write-a-plugin.md). `graph` composes the steps and
checks them against their models, `runner` runs requests through them, and `shapes`
converts tensors between them. `kind` is what the server asks for. Import only `app` and
`engine` of PopGate.
"""
