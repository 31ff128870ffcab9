"""PopGate on Ray Serve: `import_path: popgate_ray:application` (docs/how-to/scale.md).

Runs in the processes of Ray's replicas. May import of PopGate: `app`, `engine`. Needs
the extra `popgate[ray]`; `saturation` does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from popgate_ray.replica import (
        ScaleByUtilization,
        application,
        deployment,
        replica_settings,
    )

__all__ = ["ScaleByUtilization", "application", "deployment", "replica_settings"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'popgate_ray' has no attribute {name!r}")
    from popgate_ray import replica

    return getattr(replica, name)
