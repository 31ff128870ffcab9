# ruff: noqa: N802 - the names are the original's
"""Descriptions of tensor data and feed data blobs (PopEF User Guide 5.1)."""

from __future__ import annotations

import popef_io
from popef.taking import Text, number, taken, text
from popef.values import TensorInfo


class _DataInfo:
    """Description of the anchors for which a blob has data."""

    __slots__ = ("_executable", "_name", "_tensor_info")

    def __init__(self) -> None:
        self._name = ""
        self._tensor_info = TensorInfo()
        self._executable = ""

    def name(self) -> str:
        """Return the name of the anchors to which the data belong."""
        return self._name

    def setName(self, name: Text) -> None:
        """Set the name of the anchors to which the data belong."""
        self._name = text(name)

    def tensorInfo(self) -> TensorInfo:
        """Return shape and type of one tensor."""
        return self._tensor_info

    def setTensorInfo(self, info: TensorInfo) -> None:
        """Set the shape and type of one tensor, by a copy."""
        self._tensor_info = taken(info, TensorInfo)

    def executable(self) -> str:
        """Return the name of its executable; empty: any executable with such an anchor.

        An addition of PopGate.
        """
        return self._executable

    def setExecutable(self, executable: Text) -> None:
        """Set the name of the executable to which the data belong."""
        self._executable = text(executable)


class TensorDataInfo(_DataInfo):
    """The tensor of the anchors called `name`."""

    __slots__ = ()

    @classmethod
    def from_io(cls, info: popef_io.TensorDataInfo) -> TensorDataInfo:
        """Return the object for a value of `popef_io`."""
        made = cls()
        made._name, made._executable = info.name, info.executable
        made._tensor_info = TensorInfo.from_io(info.tensor_info)
        return made

    def to_io(self) -> popef_io.TensorDataInfo:
        """Return the value of `popef_io` (an addition of PopGate)."""
        info = self._tensor_info.to_io()
        return popef_io.TensorDataInfo(self._name, info, self._executable)

    def __repr__(self) -> str:
        return f"<TensorDataInfo {self._name!r} {self._tensor_info.to_io()}>"


class FeedDataInfo(_DataInfo):
    """`numTensors` tensors, each as `tensorInfo` says, for the anchor called `name`."""

    __slots__ = ("_num_tensors",)

    def __init__(self) -> None:
        super().__init__()
        self._num_tensors = 0

    def numTensors(self) -> int:
        """Return the number of tensors in the feed."""
        return self._num_tensors

    def setNumTensors(self, num_tensors: int) -> None:
        """Set the number of tensors in the feed."""
        self._num_tensors = number(num_tensors)

    @classmethod
    def from_io(cls, info: popef_io.FeedDataInfo) -> FeedDataInfo:
        """Return the object for a value of `popef_io`."""
        made = cls()
        made._name, made._executable = info.name, info.executable
        made._tensor_info = TensorInfo.from_io(info.tensor_info)
        made._num_tensors = info.num_tensors
        return made

    def to_io(self) -> popef_io.FeedDataInfo:
        """Return the value of `popef_io` (an addition of PopGate)."""
        return popef_io.FeedDataInfo(
            self._name, self._tensor_info.to_io(), self._num_tensors, self._executable
        )

    def __repr__(self) -> str:
        info = self._tensor_info.to_io()
        return f"<FeedDataInfo {self._name!r} {self._num_tensors} x {info}>"
