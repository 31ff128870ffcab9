"""Import OpenTelemetry's propagators, also if one that is named is not installed.

FastAPI imports ``opentelemetry.propagate``, which raises `ValueError` for a name in
``OTEL_PROPAGATORS`` that no installed package has. The variable is often set for all
programs of a cluster, so it must not keep the server from starting. PopGate itself
reads the W3C headers (``tracecontext``) and no others.
"""

from __future__ import annotations

import os
from importlib import import_module, metadata

VARIABLE = "OTEL_PROPAGATORS"
_MODULE = "opentelemetry.propagate"
_GROUP = "opentelemetry_propagator"

#: The names in ``OTEL_PROPAGATORS`` that could not be imported.
missing: list[str] = []


def import_propagators() -> None:
    """Import the propagators that are installed; `missing` has the names of the others.

    The variable keeps its value, because Python models of another interpreter may have
    more packages. Without the variable nothing is imported.
    """
    named = os.environ.get(VARIABLE, "")
    if not named.strip():
        return
    known = {entry.name for entry in metadata.entry_points(group=_GROUP)}
    names = [name.strip() for name in named.split(",") if name.strip()]
    # Import the known names, or none of them if one fails.
    for usable in ([n for n in names if n in known or n.lower() == "none"], ["none"]):
        try:
            os.environ[VARIABLE] = ",".join(usable) or "none"
            import_module(_MODULE)
        except ModuleNotFoundError as e:
            if e.name is not None and _MODULE.startswith(e.name):
                return  # OpenTelemetry is not installed
        except Exception:
            continue
        else:
            missing[:] = [name for name in names if name not in usable]
            return
        finally:
            os.environ[VARIABLE] = named
