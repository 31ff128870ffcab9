"""`AnchorConnections`: the connection of each anchor of a session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

from engine.errors import AnchorsNotConnected, InvalidConfig, UnknownAnchor
from popef_io import Anchor, Model, TensorType
from popgate_session_messages import AnchorBinding
from popgate_sessions.bindings import (
    CallbackSink,
    CallbackSource,
    InputSource,
    OutputSink,
    QueueSink,
    QueueSource,
)
from popgate_sessions.callbacks import (
    AnchorCallbackPolicy,
    AnchorCallbackPredicate,
    CallbackFactory,
    CallbackHandle,
    CallbackInfo,
    PopefDataUsagePolicy,
    PopefDataUsagePredicate,
)
from popgate_sessions.queue_manager import QueueManager


class Fixed(Enum):
    """Actions of the device itself: FILE reads the model's data; EMPTY reads zeros and
    drops written data.
    """

    FILE = 0
    EMPTY = 1


class AnchorConnections:
    """The connections of one session, by the place of the anchor in the metadata.

    Tensor data and feeds of the file are connected from the start, unless
    `pred_tensor_data` says USE_USER_DATA. The last connection of an anchor wins, but a
    dummy never replaces another connection.
    """

    def __init__(
        self, model: Model, pred_tensor_data: PopefDataUsagePredicate | None
    ) -> None:
        self._anchors: Sequence[Anchor] = model.metadata.anchors
        self.sources: dict[int, InputSource] = {}
        self.sinks: dict[int, OutputSink] = {}
        self._fixed: dict[int, Fixed] = {}
        #: Changes whenever a connection does.
        self.version = 0
        for index, anchor in enumerate(self._anchors):
            has_data = anchor.name in model.tensors or anchor.name in model.feeds
            if anchor.type is TensorType.INPUT and has_data:
                policy = PopefDataUsagePolicy.USE_POPEF_DATA_IF_ANY
                if pred_tensor_data is not None:
                    policy = pred_tensor_data(anchor)
                if policy == PopefDataUsagePolicy.USE_POPEF_DATA_IF_ANY:
                    self._fixed[index] = Fixed.FILE

    def anchors(self, kind: TensorType) -> tuple[Anchor, ...]:
        """Return all inputs or all outputs."""
        return tuple(a for a in self._anchors if a.type is kind)

    def user_anchors(self, kind: TensorType) -> tuple[Anchor, ...]:
        """Return the anchors that the file does not feed."""
        return tuple(a for _, a in self._users(kind))

    # -- connecting

    def set_callback(self, handle: str, callback: CallbackHandle) -> None:
        """Connect the anchor with this stream handle, or the only anchor of a tensor
        with this name. Raises UnknownAnchor if there is none.
        """
        if not callable(callback):
            raise InvalidConfig(
                f"expected a callback that can be called, got {callback!r}"
            )
        streams = [
            (index, anchor)
            for index, anchor in enumerate(self._anchors)
            if anchor.type is not TensorType.UNKNOWN
        ]
        found = [place for place in streams if place[1].handle == handle]
        found = found or [place for place in streams if place[1].name == handle]
        if len(found) != 1:
            raise UnknownAnchor(
                f"expected one anchor with the handle or name {handle!r}, "
                f"found {len(found)}; the handles are "
                f"{[anchor.handle for _, anchor in streams]}"
            )
        self._set_callback(*found[0], callback)

    def set_handler(
        self,
        kind: TensorType,
        factory: CallbackFactory,
        predicate: AnchorCallbackPredicate | None,
        skip_connected: bool,
    ) -> None:
        """Ask `factory` for the callback of each anchor that the predicate selects."""
        for index, anchor in self._chosen(kind, predicate):
            if skip_connected and self._is_served(index):
                continue
            callback = factory(CallbackInfo(anchor))
            if callback is not None and not callable(callback):
                raise InvalidConfig(
                    "the factory must return a callback or None for anchor "
                    f"{anchor.name!r}, got {callback!r}"
                )
            if callback is not None:
                self._set_callback(index, anchor, callback)

    def choose_for_queues(
        self, kind: TensorType, predicate: AnchorCallbackPredicate | None
    ) -> list[Anchor]:
        """Return the anchors that get a queue; connect the predicate's dummies."""
        return [anchor for _, anchor in self._chosen(kind, predicate)]

    def set_queues(self, queues: QueueManager) -> None:
        """Connect the anchors of these queues to them."""
        places = {(a.type, a.handle): i for i, a in enumerate(self._anchors)}
        for source in queues.inputs.values():
            index = places[TensorType.INPUT, source.anchor.handle]
            self._replace(index)
            self.sources[index] = QueueSource(source)
        for sink in queues.outputs.values():
            index = places[TensorType.OUTPUT, sink.anchor.handle]
            self._replace(index)
            self.sinks[index] = QueueSink(sink)

    def drop_queues(self) -> None:
        """Leave all anchors of queues unconnected."""
        for index, binding in [*self.sources.items(), *self.sinks.items()]:
            if isinstance(binding, QueueSource | QueueSink):
                self._replace(index)

    # -- asking

    def not_connected(self, programs: Iterable[int]) -> dict[int, tuple[Anchor, ...]]:
        """Return the unconnected anchors of each program that has any."""
        missing = {}
        for program in programs:
            anchors = tuple(
                anchor
                for index, anchor in enumerate(self._anchors)
                if program in anchor.programs
                and anchor.type is not TensorType.UNKNOWN
                and not self._is_connected(index)
            )
            if anchors:
                missing[program] = anchors
        return missing

    def check(self, programs: Iterable[int]) -> None:
        """Raise AnchorsNotConnected, which lists the unconnected anchors of the
        programs.
        """
        missing = self.not_connected(programs)
        if missing:
            lines = "; ".join(
                f"program {program}: {', '.join(repr(a.name) for a in anchors)}"
                for program, anchors in missing.items()
            )
            raise AnchorsNotConnected(
                f"these anchors are not connected to a queue or callback: {lines}"
            )

    def check_outlets(self, programs: Iterable[int]) -> None:
        """Raise AnchorsNotConnected if these programs would fail, or would wait for
        ever because an output has no buffer.
        """
        self.check(programs)
        wanted = set(programs)
        for index, sink in self.sinks.items():
            anchor = self._anchors[index]
            if not wanted.isdisjoint(anchor.programs) and not sink.has_room:
                raise AnchorsNotConnected(
                    f"output {anchor.name!r} has no buffer; queue one before the run"
                )

    @property
    def all_real(self) -> bool:
        """Return whether all data since `begin` came from and went to the host."""
        return all(binding.is_real for binding in self._bindings())

    def begin(self) -> None:
        """Begin a run."""
        for binding in self._bindings():
            binding.is_real = True

    @property
    def binding(self) -> AnchorBinding:
        """Return the source of each anchor, for the device."""
        fixed = self._fixed.items()
        return AnchorBinding(
            host=tuple(sorted([*self.sources, *self.sinks])),
            ready=tuple(i for i, one in self.sources.items() if one.can_look_ahead),
            empty=tuple(i for i, how in fixed if how is Fixed.EMPTY),
            file=tuple(i for i, how in fixed if how is Fixed.FILE),
        )

    def __repr__(self) -> str:
        return (
            f"<AnchorConnections {len(self.sources)} sources, {len(self.sinks)} sinks, "
            f"{len(self._fixed)} served by the device>"
        )

    # -- helpers

    def _users(self, kind: TensorType) -> Iterator[tuple[int, Anchor]]:
        for index, anchor in enumerate(self._anchors):
            if anchor.type is kind and self._fixed.get(index) is not Fixed.FILE:
                yield index, anchor

    def _chosen(
        self, kind: TensorType, predicate: AnchorCallbackPredicate | None
    ) -> Iterator[tuple[int, Anchor]]:
        """Yield the anchors for BIND_USER_CB; connect a dummy for BIND_EMPTY_CB."""
        for index, anchor in list(self._users(kind)):
            policy = AnchorCallbackPolicy.BIND_USER_CB
            if predicate is not None:
                policy = predicate(anchor)
            if policy == AnchorCallbackPolicy.BIND_USER_CB:
                yield index, anchor
            elif (
                policy == AnchorCallbackPolicy.BIND_EMPTY_CB
                and not self._is_connected(index)
            ):
                self._replace(index)
                self._fixed[index] = Fixed.EMPTY

    def _bindings(self) -> Iterator[InputSource | OutputSink]:
        yield from self.sources.values()
        yield from self.sinks.values()

    def _is_connected(self, index: int) -> bool:
        return index in self.sources or index in self.sinks or index in self._fixed

    def _is_served(self, index: int) -> bool:
        return self._is_connected(index) and (self._fixed.get(index) is not Fixed.EMPTY)

    def _set_callback(
        self, index: int, anchor: Anchor, callback: CallbackHandle
    ) -> None:
        self._replace(index)
        if anchor.type is TensorType.INPUT:
            self.sources[index] = CallbackSource(anchor, callback)
        else:
            self.sinks[index] = CallbackSink(anchor, callback)

    def _replace(self, index: int) -> None:
        self.version += 1
        self.sources.pop(index, None)
        self.sinks.pop(index, None)
        self._fixed.pop(index, None)
