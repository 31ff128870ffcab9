"""Connections and policies of a session's anchors.

The words are those of Model Runtime's "Anchor callback management". All types here are
for the thread that runs the programs: callbacks are called in it and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, TypeAlias

from engine.tensor import Array
from popef_io import Anchor, TensorInfo


class AnchorCallbackPolicy(IntEnum):
    """Policies for an anchor (Model Runtime: `AnchorCallbackPolicy`).

    BIND_USER_CB: connect the user's callback, or a queue. BIND_EMPTY_CB: connect a
    dummy, which returns zeros and drops data, unless the anchor is connected already.
    SKIP_CB: leave it unchanged; a program that uses an unconnected anchor fails.
    """

    BIND_USER_CB = 0
    BIND_EMPTY_CB = 1
    SKIP_CB = 2

    __str__ = Enum.__str__
    __format__ = Enum.__format__


class PopefDataUsagePolicy(IntEnum):
    """Policies for feeding an anchor from the file (`PopefDataUsagePolicy`).

    USE_POPEF_DATA_IF_ANY: tensor data or a feed are connected if the file has
    them. USE_USER_DATA: they are not, and the user connects something else.
    """

    USE_POPEF_DATA_IF_ANY = 0
    USE_USER_DATA = 1

    __str__ = Enum.__str__
    __format__ = Enum.__format__


@dataclass(frozen=True, slots=True)
class CallbackInfo:
    """Arguments of a callback factory (Model Runtime: `CallbackInfo`)."""

    anchor: Anchor

    @property
    def name(self) -> str:
        """Return the name of the tensor."""
        return self.anchor.name

    @property
    def handle(self) -> str:
        """Return the handle of the stream, unique in the model."""
        return self.anchor.handle

    @property
    def tensor_info(self) -> TensorInfo:
        """Return the shape and type of the data of one call."""
        return self.anchor.tensor_info


#: `callback(memory)`, called whenever the device reads from or writes to the stream.
#: `memory` is an array of the anchor's shape and type, which is valid during the call
#: only: an input's is to be filled, an output's to be read. If the shape of an input is
#: known only at run time, or it holds strings, `memory` is empty and the callback
#: returns an array instead.
CallbackHandle: TypeAlias = Callable[[Array], Any]
#: Makes the callback for an anchor; None leaves the anchor as it is.
CallbackFactory: TypeAlias = Callable[[CallbackInfo], CallbackHandle | None]
AnchorCallbackPredicate: TypeAlias = Callable[[Anchor], AnchorCallbackPolicy]
PopefDataUsagePredicate: TypeAlias = Callable[[Anchor], PopefDataUsagePolicy]
