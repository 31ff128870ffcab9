"""Requests and answers as HTTP: the server, its protocol, the ASGI front, connections.

Runs in the gateway process, on its event loop. May import `serving`, `codec`, `config`,
`observe` and the ground.
"""
