"""KServe's first protocol, which is TensorFlow Serving's: ``:predict``.

A plugin of PopGate (docs/how-to/write-a-plugin.md). Runs in the processes that accept
connections. May import of PopGate: `app`, `engine`.
"""
