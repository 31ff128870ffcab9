"""Loads and stores of remote memory, which is not there yet; they say so."""

from __future__ import annotations

from typing import NoReturn

import popir
from popxl.remote_buffer import RemoteBuffer
from popxl.tensor import Tensor


def remote_load(
    remote_buffer: RemoteBuffer, offset: int | Tensor, name: str | None = None
) -> NoReturn:
    """Not there yet."""
    raise popir.NotYet("ops.remote_load is not there yet: no remote memory is")


def remote_load_(
    remote_buffer: RemoteBuffer, offset: int | Tensor, t: Tensor
) -> NoReturn:
    """Not there yet."""
    raise popir.NotYet("ops.remote_load_ is not there yet: no remote memory is")


def remote_store(
    remote_buffer: RemoteBuffer, offset: int | Tensor, t: Tensor
) -> NoReturn:
    """Not there yet."""
    raise popir.NotYet("ops.remote_store is not there yet: no remote memory is")
