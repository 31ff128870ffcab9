"""Sessions of `popart`: a program on a device, by the ids of streams."""

# ruff: noqa: N802, N803 - the names are the original's
from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import popir
from popart.data_flow import AnchorReturnType as AnchorReturnType
from popart.data_flow import DataFlow as DataFlow
from popart.devices import DeviceInfo
from popart.logs import log
from popart.views import IrView
from popir.caching import DEFAULT_SIZE, ProgramCache
from popir.instances import Instances, connect
from popir.session import Printer, ProgramSession

_Array = np.ndarray[Any, Any]


def _tell(level: str, text: str) -> None:
    log("session", level, text)


#: Options about places and output, which do not change a program.
_ELSEWHERE = ("cachePath", "enableEngineCaching", "logDir", "dotChecks")


def _around(options: Any, device: DeviceInfo) -> dict[str, Any]:
    """Return the inputs of a compiled program besides its graphs."""
    given = {k: v for k, v in vars(options).items() if k not in _ELSEWHERE}
    # Instances differ only by their first replica, so they share a folder.
    given.pop("globalReplicaOffset", None)
    return {"options": given, "device": device.type.name}


def _cache_size() -> int:
    """Return the most bytes of a folder of compiled programs."""
    text = os.environ.get("POPXL_CACHE_SIZE", "").strip()
    if not text:
        return DEFAULT_SIZE
    digits = text.rstrip("KMGTkmgtBb")
    factor = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    unit = text[len(digits) :].upper().removesuffix("B")
    if not digits.strip().isdecimal() or unit not in factor:
        raise popir.IrError(
            f"POPXL_CACHE_SIZE is {text!r}; expected bytes, such as 500MB or 10GB"
        )
    return int(digits) * factor[unit]


class PyStepIO:
    """The arrays of one run, by the ids of streams."""

    def __init__(
        self, inputs: Mapping[str, _Array], outputs: Mapping[str, _Array]
    ) -> None:
        self.inputs = dict(inputs)
        self.outputs = dict(outputs)

    def enableRuntimeAsserts(self, enable: bool) -> None:
        """Accept the setting without effect: arrays are always checked."""


class InferenceSession:
    """A program on a device. Made by `fromIr`."""

    _ir: popir.Ir
    _device: DeviceInfo
    _running: ProgramSession | None
    printer: Printer | None
    """Shows the output of print operators."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise popir.IrError(
            "an InferenceSession of an ONNX model is not supported; use fromIr"
        )

    @classmethod
    def fromIr(
        cls, ir: IrView, deviceInfo: DeviceInfo, name: str = "fromIr"
    ) -> InferenceSession:
        """Return a session of a program that was built."""
        self = cls.__new__(cls)
        self._ir = ir._below
        self._device = deviceInfo
        self._running = None
        self.printer = None
        return self

    @property
    def _transfers(self) -> int:
        """Return the number of slices of each array in a run."""
        return self._ir.transfers

    @property
    def _replicas(self) -> int:
        return int(getattr(self._ir.options, "replicatedGraphCount", 1))

    def _instances(self) -> Instances | None:
        """Return the processes that run the program; None: only this one."""
        options = self._ir.options
        if not getattr(options, "enableDistributedReplicatedGraphs", False):
            return None
        total = int(options.globalReplicationFactor)
        if total == self._replicas:
            return None
        instances = connect()
        this = instances.identity
        asked = (total, self._replicas, int(options.globalReplicaOffset))
        found = (this.replicas, this.local_replicas, this.offset)
        if asked != found:
            raise popir.IrError(
                "the session options ask for globalReplicationFactor, "
                f"replicatedGraphCount and globalReplicaOffset {asked}; the launcher "
                f"started this instance with {found}"
            )
        return instances

    def _cache(self) -> ProgramCache | None:
        """Return the folder of compiled programs, if the options name one."""
        options = self._ir.options
        folder = getattr(options, "cachePath", "")
        if not getattr(options, "enableEngineCaching", False) or not folder:
            return None
        preload = os.environ.get("POPART_PRELOAD_POPEF") == "full-preload"
        return ProgramCache(Path(folder), _tell, _cache_size(), preload)

    def prepareDevice(self, loadEngine: bool = True) -> None:
        """Compile the program, and attach the device unless `loadEngine` is False."""
        options = self._ir.options
        instances = self._instances()
        self._running = ProgramSession(
            self._ir,
            check_order=getattr(options, "enableInplaceAmbiguityChecking", True),
            check_scales=getattr(options, "throwIfLog2ScaleTensorNotInRange", False),
            printer=self.printer,
            on_pool=self._device.is_on_pool,
            transfers=self._transfers,
            replicas=self._replicas,
            instances=instances,
            cache=self._cache(),
            around=_around(options, self._device),
            tell=_tell,
        )
        if not self._running.is_on_pool:
            self._device.stay_in_process()
        self._ir.is_prepared = True
        if loadEngine and not self._device.attach():
            raise popir.RunError(f"{self._device!r} could not be attached")

    def _prepared(self) -> ProgramSession:
        if self._running is None:
            raise popir.IrError("the session is not prepared: call prepareDevice")
        if not self._running.is_attached and self._device.isAttached:
            self._running.attach(self._device._device)
            self._device._users.add(self._running)
        return self._running

    def weightsFromHost(self) -> None:
        """Copy the host's weights to the device."""
        running = self._prepared()
        count = len(running.program.variables) + len(running.program.remote)
        log("session", "DEBUG", f"Writing weights from host, {count} tensors")
        running.weights_from_host()
        log("session", "DEBUG", "Writing weights from host complete.")

    def weightsToHost(self) -> None:
        """Copy the device's state to the host's copies."""
        running = self._prepared()
        log("session", "DEBUG", "Writing weights to host")
        running.weights_to_host()
        for variable in (*running.program.variables, *running.program.remote):
            id_ = variable.id
            text = f"Reusing TensorData for d2hWeightBuffer of tensor {id_}"
            log("session", "TRACE", text)
        log("session", "DEBUG", "Writing weights to host complete.")

    def copyDeviceWeightsToHost(self) -> None:
        """Copy the weights as `weightsToHost` does."""
        self.weightsToHost()

    def areHostWeightsInSync(self) -> bool:
        """Return whether the host's copies equal the device's."""
        return self._running is None or self._running.host_is_current

    def markHostWeightsOutOfSync(self) -> None:
        """Mark the host's copies as stale. They are copied again before they are
        read.
        """
        if self._running is not None:
            self._running.host_is_current = False

    def markHostWeightsInSync(self) -> None:
        """Mark the host's copies as current."""
        if self._running is not None:
            self._running.host_is_current = True

    def _streams(self, is_input: bool) -> dict[str, popir.Stream]:
        return {
            id_: each
            for id_, each in self._ir.streams.items()
            if each.is_input is is_input and each.uses
        }

    def initAnchorArrays(self) -> dict[str, _Array]:
        """Return an empty array for each output stream, by its id."""
        lead = tuple(n for n in (self._transfers, self._replicas) if n > 1)
        return {
            id_: np.empty((*lead, *each.tensor.shape), each.tensor.dtype.numpy)
            for id_, each in self._streams(is_input=False).items()
        }

    def run(self, stepio: PyStepIO, debugName: str = "") -> None:
        """Run the main graph once."""
        running = self._prepared()
        lead = (self._transfers, *([self._replicas] if self._replicas > 1 else ()))
        inputs, outputs, late = {}, {}, []
        for id_, each in self._streams(is_input=True).items():
            if id_ not in stepio.inputs:
                raise popir.IrError(f"there are no data for the stream {id_!r}")
            shape = (*lead, *each.tensor.shape)
            data = np.ascontiguousarray(stepio.inputs[id_], each.tensor.dtype.numpy)
            inputs[each.tensor] = data.reshape(shape)
        for id_, each in self._streams(is_input=False).items():
            rows = np.empty((*lead, *each.tensor.shape), each.tensor.dtype.numpy)
            outputs[each.tensor] = rows
            if id_ in stepio.outputs:
                late.append((stepio.outputs[id_], rows))
        running.run(inputs, outputs)
        for target, rows in late:
            target[...] = rows.reshape(target.shape)
