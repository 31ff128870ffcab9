"""One request's life: the table of models, calls, sequences, steps, ensembles.

Runs in the gateway process, on its event loop. May import `codec`, `config`, `observe`
and the ground.
"""
