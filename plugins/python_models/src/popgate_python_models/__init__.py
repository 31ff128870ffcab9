"""The gateway's end of Python models: their calls to other models, and their metrics.

A plugin of PopGate (docs/how-to/write-a-plugin.md). `model_calls` serves the processes
of Python models. `called_request` runs one call like a client's request, and
`call_routes` lets a process feed another model itself. `own_metrics` adds up the
metrics that models have of their own. Runs in the gateway. Import only `app` and
`engine` of PopGate.
"""
