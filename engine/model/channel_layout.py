"""Sizes of the rings of a channel."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import InvalidModel
from engine.tensor import DataDesc
from engine.transport.channel import MAX_PAYLOAD, ChannelLayout
from engine.transport.shared_memory import PAGE, page_aligned

#: The least usual memory of an anchor in bytes, if `channel_memory` allows that much. A
#: request may have many times the rows that run at once.
LEAST_ROOM = 1 << 20


def plan_layout(
    inputs: Sequence[DataDesc],
    outputs: Sequence[DataDesc],
    slots: int,
    rows: int,
    memory: int,
) -> ChannelLayout:
    """Return the sizes of a channel. The anchors of each direction share `memory` bytes
    by need.

    If an anchor's size is known, its usual memory holds `slots` requests of up to
    `rows` rows, as far as `memory` allows. A larger request may use the anchor's whole
    share of `memory`. Shares are proportional to the sizes if all sizes are known, and
    equal otherwise. Unused memory costs nothing.

    Raises InvalidModel if a run needs more memory than a channel can have.
    """
    taken, taken_usually = _share(inputs, slots, rows, memory)
    given, given_usually = _share(outputs, slots, rows, memory)
    return ChannelLayout(slots, taken, given, taken_usually + given_usually)


def _share(
    descs: Sequence[DataDesc], slots: int, rows: int, memory: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the largest and the usual memory of each anchor."""
    if not descs:
        return (), ()
    equal = max(PAGE, memory // len(descs) // PAGE * PAGE)
    known = [_known_bytes(desc, rows) for desc in descs]
    total = 0 if None in known else sum(size or 0 for size in known)
    sizes, usual = [], []
    for desc, size in zip(descs, known, strict=True):
        if size is None:
            sizes.append(equal)
            usual.append(equal)
            continue
        # Room for at least two of the largest runs, so that one can be filled while the
        # other is read.
        often = page_aligned(min(max(size * slots, LEAST_ROOM), equal))
        often = page_aligned(max(often, 2 * size + PAGE))
        if often > MAX_PAYLOAD:
            raise InvalidModel(
                f"{desc.name!r} has {size} bytes in a run; at most {MAX_PAYLOAD // 2} "
                "bytes are possible"
            )
        share = page_aligned(memory * size // total) if total else equal
        sizes.append(max(often, share))
        usual.append(often)
    return tuple(sizes), tuple(usual)


def _known_bytes(desc: DataDesc, rows: int) -> int | None:
    """Return the bytes of the largest request. Return None if a dimension other than
    the first is free.
    """
    if desc.shape is None or not desc.data_type.item_size:
        return None
    if any(dim < 0 for dim in desc.shape[1:]):
        return None
    nbytes = desc.data_type.item_size
    for position, dim in enumerate(desc.shape):
        if dim >= 0:
            nbytes *= dim
        elif position == 0 and rows:
            nbytes *= rows
        else:
            return None
    return nbytes
