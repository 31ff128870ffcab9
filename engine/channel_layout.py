"""How large the rings of a channel are."""

from __future__ import annotations

from collections.abc import Sequence

from engine.channel import ChannelLayout
from engine.shared_memory import PAGE, page_aligned
from engine.tensor import DataDesc

#: Bytes that an anchor has at least, where `channel_memory` allows: a request may have
#: many times the rows that run at once.
LEAST_ROOM = 1 << 20


def plan_layout(
    inputs: Sequence[DataDesc],
    outputs: Sequence[DataDesc],
    slots: int,
    rows: int,
    memory: int,
) -> ChannelLayout:
    """Sizes of a channel: `memory` bytes per direction, shared out by need.

    An anchor whose size is known gets what `slots` requests of up to `rows` rows take,
    as far as it goes; one whose size is not known gets an equal share of the rest.
    """
    return ChannelLayout(
        slots, _share(inputs, slots, rows, memory), _share(outputs, slots, rows, memory)
    )


def _share(
    descs: Sequence[DataDesc], slots: int, rows: int, memory: int
) -> tuple[int, ...]:
    if not descs:
        return ()
    equal = max(PAGE, memory // len(descs) // PAGE * PAGE)
    sizes = []
    for desc in descs:
        known = _known_bytes(desc, rows)
        if known is None:
            sizes.append(equal)
        else:
            # Never less than two of the largest requests that run at once, so that one
            # can be filled while the other is read; and larger ones may come.
            wanted = page_aligned(min(max(known * slots, LEAST_ROOM), equal))
            sizes.append(max(wanted, 2 * known + PAGE))
    return tuple(page_aligned(size) for size in sizes)


def _known_bytes(desc: DataDesc, rows: int) -> int | None:
    """Bytes of the largest request where the shape is free in dimension 0 at most."""
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
