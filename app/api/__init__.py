"""The FastAPI application's operations: routes, schemas, OpenAPI, documentation.

Runs in the gateway process, on its event loop. May import the gateway and all that lies
below it.
"""
