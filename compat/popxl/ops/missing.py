"""Operators that are not there yet; they say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import popir


def _missing(name: str) -> Callable[..., Any]:
    def operator(*_: Any, **__: Any) -> NoReturn:
        raise popir.NotYet(f"ops.{name} is not there yet")

    operator.__name__ = operator.__qualname__ = name
    operator.__doc__ = "Not there yet."
    return operator


conv_pow2scaled = _missing("conv_pow2scaled")
conv_transpose = _missing("conv_transpose")
conv_transpose_pow2scaled = _missing("conv_transpose_pow2scaled")
interpolate = _missing("interpolate")
matmul_pow2scaled = _missing("matmul_pow2scaled")
pow2scale_cast_to_fp8 = _missing("pow2scale_cast_to_fp8")
pow2scale_cast_from_fp8 = _missing("pow2scale_cast_from_fp8")
pow2scale_then_cast = pow2scale_cast_to_fp8
cast_then_pow2scale = pow2scale_cast_from_fp8
remote_load = _missing("remote_load")
remote_load_ = _missing("remote_load_")
remote_store = _missing("remote_store")
roi_align = _missing("roi_align")
