"""The client under the name that programs import. The plugin `popgate_client` contains
it.

An entry point would add 75 ms to each program that imports the client, and type
checkers would not know the names.
"""

from __future__ import annotations

from popgate_client import *  # noqa: F403
from popgate_client import __all__ as __all__
