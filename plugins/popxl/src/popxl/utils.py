"""Host arrays and tables."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np

import popart
from popxl import dtypes
from popxl.fp8_utils import (
    host_cast_then_pow2scale,
    host_pow2scale_cast_from_fp8,
    host_pow2scale_cast_to_fp8,
    host_pow2scale_then_cast,
)

__all__ = (
    "HW_DEVICE_CONNECTION_TIMEOUT",
    "downcast_np_dtypes",
    "host_cast_then_pow2scale",
    "host_pow2scale_cast_from_fp8",
    "host_pow2scale_cast_to_fp8",
    "host_pow2scale_then_cast",
    "table_to_string",
    "to_numpy",
)

HW_DEVICE_CONNECTION_TIMEOUT = 10000
downcast_np_dtypes: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype("int64"): np.dtype("int32"),
    np.dtype("uint64"): np.dtype("uint32"),
    np.dtype("float64"): np.dtype("float32"),
}


def _to_device_info(
    device_type: str, num_ipus: int = 1, use_popdist: bool = False
) -> popart.DeviceInfo:
    """Return the device that a string names, of `num_ipus` rounded up to a
    power of 2.
    """
    units = 1 << max(num_ipus - 1, 0).bit_length()
    manager = popart.DeviceManager()
    if device_type == "cpu":
        if units > 1:
            raise ValueError(
                f"A 'cpu' device has one unit, but the program needs {units}"
            )
        return manager.createCpuDevice()
    if device_type == "ipu_model":
        return manager.createIpuModelDevice({"numIPUs": units})
    if device_type == "ipu_hw":
        return manager.acquireAvailableDevice(
            units, connectionType=popart.DeviceConnectionType.OnDemand
        )
    raise ValueError(f"Incorrect device type provided: {device_type!r}")


def _host_array(x: Any) -> np.ndarray[Any, Any]:
    """Return numbers, nested sequences, arrays or torch tensors as an array. Raises
    TypeError for None, strings and other objects.
    """
    if hasattr(x, "detach") and hasattr(x, "cpu"):  # a torch tensor
        x = x.detach().cpu().numpy()
    array = np.asarray(x)
    if array.dtype.kind not in "biufcV":
        raise TypeError(
            f"{reprlib.repr(x)} cannot become a tensor: expected numbers of at most 64 "
            "bits"
        )
    return array


def to_numpy(
    x: Any,
    dtype: dtypes.dtype | None = None,
    downcast: bool = True,
    copy: bool = True,
    log2_scale: int | None = None,
    nan_on_overflow: bool | None = None,
) -> np.ndarray[Any, Any]:
    """Return `x` as a C-contiguous array of `dtype`, or of its own type with 64 bits as
    32.
    """
    to = None if dtype is None else dtypes.dtype.as_dtype(dtype)
    is_float8 = to in (dtypes.float8_143, dtypes.float8_152)
    if not is_float8 and (log2_scale is not None or nan_on_overflow is not None):
        raise RuntimeError(
            f"log2_scale and nan_on_overflow are for float8 types only, not {to}"
        )
    array = _host_array(x)
    if is_float8 and to is not None:
        if array.dtype == to.as_numpy():
            result = array
        elif array.dtype.kind == "f":
            overflow = True if nan_on_overflow is None else nan_on_overflow
            scale = log2_scale or 0
            return host_pow2scale_cast_to_fp8(array, to, scale, overflow)
        else:
            raise TypeError(f"data of type {array.dtype} cannot be cast to {to}")
    elif to is not None:
        if array.dtype.names:
            raise TypeError(f"data of type {array.dtype} cannot be cast to {to}")
        result = array.astype(to.as_numpy(), copy=False)
    elif downcast and array.dtype in downcast_np_dtypes:
        result = array.astype(downcast_np_dtypes[array.dtype])
    else:
        result = array
    if not result.flags.c_contiguous:
        return np.ascontiguousarray(result)
    if copy and np.may_share_memory(result, array):
        return result.copy()
    return result


def table_to_string(
    rows: Sequence[Sequence[Any]], delimiter: str = " | ", header: bool = True
) -> str:
    """Return a table as a string: columns padded to one width, the first row
    underlined.
    """
    texts = [[str(cell) for cell in row] for row in rows]
    columns = max((len(row) for row in texts), default=0)
    widths = [
        max((len(row[n]) for row in texts if n < len(row)), default=0)
        for n in range(columns)
    ]
    lines = [
        delimiter.join(cell.ljust(widths[n]) for n, cell in enumerate(row))
        for row in texts
    ]
    if header and lines:
        lines.insert(1, "-" * len(lines[0]))
    return "\n".join(lines) + ("\n" if lines else "")
