"""One request's life: the table of models, calls, and kinds of models that plugins run.

Runs in the gateway process, on its event loop. May import `codec`, `config`, `observe`
and the ground.
"""
