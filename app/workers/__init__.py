"""Several processes that accept connections for one server: supervisor and workers.

Runs in the gateway process, which is then the supervisor, and in its workers. May
import `api`, `http`, `repository`, `serving`, `codec`, `config` and `observe`.
"""
