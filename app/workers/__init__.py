"""Several processes that accept connections for one server: the supervisor's side, and
the worker process.

Runs in the gateway process, which is the supervisor then, and in its workers. May
import `api`, `http`, `repository`, `serving`, `codec`, `config` and `observe`.
"""
