"""The FastAPI application's operations: routes and schemas.

Runs in the gateway process, on its event loop. May import the gateway and all that lies
below it.
"""
