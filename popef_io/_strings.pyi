from typing import Any

import numpy as np

def end_of_strings(
    data: memoryview | bytes | bytearray, count: int, most: int
) -> int | None:
    """Return where the first `count` strings of `data` end.

    Returns None if one has more than `most` bytes or extends past the end, and always
    without the compiled module.
    """

def is_alone(arrays: list[np.ndarray[Any, Any]]) -> bool | None:
    """Return whether nothing but the list of one array refers to the array and its
    memory. Returns None without the compiled module.
    """

def pack_strings(elements: list[object], most: int) -> bytes | None:
    """Return the bytes of bytes and text, each after its length.

    Returns None if one is anything else or has more than `most` bytes, and always
    without the compiled module. `encode_strings` says what is wrong.
    """

def split_strings(
    data: memoryview | bytes, at: int, count: int
) -> tuple[list[bytes], int] | None:
    """Return the `count` strings from `at` on, and where they end.

    Returns None if one extends past the end, and always without the compiled module.
    """
