# ruff: noqa: N802 - the names are the original's
"""Sizes of the rings of queues, by the programs that use an anchor.

For `Session.createQueueManager`: a ring has the multiplier times the rows of the
compiled batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import SupportsIndex, TypeAlias

import popgate_sessions
from popef import Anchor, Model
from popef.taking import expected, number, numbers

#: Returns the number of batches for which the ring of an anchor's queue has room.
RingSizeMultiplierProdType: TypeAlias = Callable[[Anchor], int]


def ringSizeMultForProgs(
    programs: Iterable[SupportsIndex],
    selected_ring_size_multiplier: SupportsIndex,
    others_ring_size_multiplier: SupportsIndex = 1,
) -> RingSizeMultiplierProdType:
    """Return one multiplier for anchors of these programs, another for the rest."""
    beneath = popgate_sessions.ring_size_for_programs(
        numbers(programs),
        number(selected_ring_size_multiplier),
        number(others_ring_size_multiplier),
    )
    return lambda anchor: beneath(expected(anchor, Anchor).to_io())


def ringSizeMultForMainProgs(
    model: Model,
    main_ring_size_multiplier: SupportsIndex,
    load_save_ring_size_multiplier: SupportsIndex = 1,
) -> RingSizeMultiplierProdType:
    """Return one multiplier for anchors of the main programs, another for the rest."""
    return ringSizeMultForProgs(
        expected(model, Model).metadata.programFlow().main(),
        main_ring_size_multiplier,
        load_save_ring_size_multiplier,
    )
