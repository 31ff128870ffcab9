"""Several processes that accept connections for one server: supervisor and workers.

Runs in the gateway process, which is then the supervisor, and in its workers. Installed
as the plugin `workers` of the group `popgate.processes`.
"""
