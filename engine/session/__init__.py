"""Model Runtime's low level: sessions, queues, callbacks, predicates.

Runs in the client process (`session/worker` in the device process). May import
`devices`, `model`, `programs`, `transport` and the ground; never `runner`.
"""
