"""Operators that are not there yet; they say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import popir


def missing(name: str, where: str = "ops", why: str = "") -> Callable[..., Any]:
    """An operator that raises `popir.NotYet`, with its place and a reason."""

    def operator(*_: Any, **__: Any) -> NoReturn:
        raise popir.NotYet(f"{where}.{name} is not there yet{why}")

    operator.__name__ = operator.__qualname__ = name
    operator.__doc__ = "Not there yet."
    return operator


remote_load = missing("remote_load")
remote_load_ = missing("remote_load_")
remote_store = missing("remote_store")
