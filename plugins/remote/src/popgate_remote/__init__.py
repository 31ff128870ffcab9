"""Remote models: listed, downloaded into a cache, and polled for changes.

A plugin of PopGate (docs/how-to/write-a-plugin.md), found as `popgate.model_sources`.
Runs in the gateway process, in threads of its own, and in `popgate validate` and
`popgate cache`. May import of PopGate: `app`, `engine`.
"""
