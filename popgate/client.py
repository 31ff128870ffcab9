"""The client by the name that programs import. `popgate_client` has it, a plugin."""

from __future__ import annotations

from popgate_client import *  # noqa: F403
from popgate_client import __all__ as __all__
