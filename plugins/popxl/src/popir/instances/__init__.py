"""Several instances of one program: processes that share its replicas.

Each instance runs the whole program with its own replicas. On one machine they exchange
values in shared memory; across machines one instance of each speaks MPI.
"""

from popir.instances.connection import connect, is_connected
from popir.instances.exchange import Instances
from popir.instances.identity import Identity, identity, is_launched

__all__ = (
    "Identity",
    "Instances",
    "connect",
    "identity",
    "is_connected",
    "is_launched",
)
