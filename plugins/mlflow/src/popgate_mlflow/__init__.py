"""MLflow's protocol: tables for models at ``/invocations``.

`form` is the form of a request, `routes` are its paths, `schemas` its documents.
"""
