"""Pages for people and the API's document: `/`, `/docs` and `/openapi.json`.

The pages show the last requests and the last hour, which are also routes for programs.
A plugin of PopGate (docs/how-to/write-a-plugin.md). Runs in the gateway process, on its
event loop. May import of PopGate: `app`, `engine`.
"""
