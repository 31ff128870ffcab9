# ruff: noqa: N802 - the names are the original's
"""`Metadata`: how to run one executable (PopEF User Guide 2.3 and 5.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import popef_io
from popef.taking import (
    Text,
    all_taken,
    each,
    names_by_number,
    number,
    taken,
    text,
    truth,
)
from popef.values import Anchor, Option, ProgramFlow


class Metadata:
    """Can be changed until it is written; `popef.values` says how accessors work.

    Defaults suit most models: counts are 1, and the executable is for inference.
    """

    __slots__ = (
        "_anchors",
        "_device_iterations",
        "_device_options",
        "_engine_options",
        "_executable",
        "_ipu_version",
        "_is_inference",
        "_is_pod",
        "_num_ipus",
        "_num_processes",
        "_program_flow",
        "_programs_map",
        "_replication_factor",
        "_seed_handle",
    )

    def __init__(self) -> None:
        self._executable = ""
        self._anchors: list[Anchor] = []
        self._program_flow = ProgramFlow()
        self._programs_map: dict[int, str] = {}
        self._replication_factor = 1
        self._num_ipus = 1
        self._ipu_version = 0
        self._is_pod = False
        self._num_processes = 1
        self._is_inference = True
        self._engine_options: list[Option] = []
        self._device_options: list[Option] = []
        self._seed_handle = ""
        self._device_iterations = 1

    def executable(self) -> str:
        """Name of the executable this describes."""
        return self._executable

    def setExecutable(self, executable: Text) -> None:
        """Take the name of the executable this describes."""
        self._executable = text(executable)

    def anchors(self) -> list[Anchor]:
        """Return the streams between host and device."""
        return self._anchors

    def setAnchors(self, anchors: Iterable[Anchor]) -> None:
        """Replace the anchors by copies of these."""
        self._anchors = all_taken(anchors, Anchor)

    def programFlow(self) -> ProgramFlow:
        """Return the programs that load, compute and save."""
        return self._program_flow

    def setProgramFlow(self, program_flow: ProgramFlow) -> None:
        """Take a copy of the program flow: which programs load, compute and save."""
        self._program_flow = taken(program_flow, ProgramFlow)

    def programsMap(self) -> dict[int, str]:
        """Name of each program, by its index."""
        return self._programs_map

    def setProgramsMap(self, programs: Mapping[int, Text]) -> None:
        """Take names of programs, by their indices."""
        self._programs_map = names_by_number(programs)

    def replicationFactor(self) -> int:
        """Return the number of replicas inside the compiled graph."""
        return self._replication_factor

    def setReplicationFactor(self, replication_factor: int) -> None:
        """Take the number of replicas inside the compiled graph."""
        self._replication_factor = number(replication_factor)

    def numIpus(self) -> int:
        """Return the number of units of a device that the programs need."""
        return self._num_ipus

    def setNumIpus(self, num_ipus: int) -> None:
        """Take the number of units of a device that the programs need."""
        self._num_ipus = number(num_ipus)

    def ipuVersion(self) -> int:
        """Return the target architecture; 0: none in particular."""
        return self._ipu_version

    def setIpuVersion(self, ipu_version: int) -> None:
        """Take the target architecture: 1, 2 or 21; 0: none in particular."""
        self._ipu_version = number(ipu_version)

    def isPOD(self) -> bool:
        """Return whether it was compiled for a Pod, which has no effect here."""
        return self._is_pod

    def setIsPOD(self, is_pod: bool) -> None:
        """Say whether it was compiled for a Pod."""
        self._is_pod = truth(is_pod)

    def numProcesses(self) -> int:
        """Return the host processes that it was compiled for, which has no
        effect here.
        """
        return self._num_processes

    def setNumProcesses(self, num_processes: int) -> None:
        """Take the number of host processes that it was compiled for."""
        self._num_processes = number(num_processes)

    def isInference(self) -> bool:
        """Return whether it is for inference, and not for training."""
        return self._is_inference

    def setIsInference(self, is_inference: bool) -> None:
        """Say whether it is for inference, and not for training."""
        self._is_inference = truth(is_inference)

    def engineOptions(self) -> list[Option]:
        """Return the options of compiling."""
        return self._engine_options

    def setEngineOptions(self, options: Iterable[Option]) -> None:
        """Take copies of the options that it was compiled with."""
        self._engine_options = all_taken(options, Option)

    def deviceOptions(self) -> list[Option]:
        """Return the options of the device that it needs."""
        return self._device_options

    def setDeviceOptions(self, options: Iterable[Option]) -> None:
        """Take copies of the options of the device that it needs."""
        self._device_options = all_taken(options, Option)

    def seedHandle(self) -> str:
        """Handle of the stream that brings the random seed; empty: none."""
        return self._seed_handle

    def setSeedHandle(self, seed_handle: Text) -> None:
        """Take the handle of the stream that brings the random seed."""
        self._seed_handle = text(seed_handle)

    def deviceIterations(self) -> int:
        """Return the iterations of one run of the main programs."""
        return self._device_iterations

    def setDeviceIterations(self, device_iterations: int) -> None:
        """Set the number of iterations that one run of the main programs performs."""
        self._device_iterations = number(device_iterations)

    def deviceIteration(self) -> int:
        """Return `deviceIterations`, by its name before June 2023."""
        return self.deviceIterations()

    def setDeviceIteration(self, device_iterations: int) -> None:
        """Call `setDeviceIterations`, by its name before June 2023."""
        self.setDeviceIterations(device_iterations)

    @classmethod
    def from_io(cls, metadata: popef_io.Metadata) -> Metadata:
        """Return the object for a value of `popef_io`."""
        made = cls()
        made._executable = metadata.executable
        made._anchors = [Anchor.from_io(anchor) for anchor in metadata.anchors]
        made._program_flow = ProgramFlow.from_io(metadata.program_flow)
        made._programs_map = dict(metadata.programs_map)
        made._replication_factor = metadata.replication_factor
        made._num_ipus = metadata.num_ipus
        made._ipu_version = metadata.ipu_version
        made._is_pod = metadata.is_pod
        made._num_processes = metadata.num_processes
        made._is_inference = metadata.is_inference
        made._engine_options = [Option.from_io(o) for o in metadata.engine_options]
        made._device_options = [Option.from_io(o) for o in metadata.device_options]
        made._seed_handle = metadata.seed_handle
        made._device_iterations = metadata.device_iterations
        return made

    def to_io(self) -> popef_io.Metadata:
        """Return the value of `popef_io` (an addition of PopGate)."""
        return popef_io.Metadata(
            executable=self._executable,
            anchors=tuple(a.to_io() for a in each(self._anchors, Anchor)),
            program_flow=self._program_flow.to_io(),
            programs_map=dict(self._programs_map),
            replication_factor=self._replication_factor,
            num_ipus=self._num_ipus,
            ipu_version=self._ipu_version,
            is_pod=self._is_pod,
            num_processes=self._num_processes,
            is_inference=self._is_inference,
            engine_options=tuple(o.to_io() for o in each(self._engine_options, Option)),
            device_options=tuple(o.to_io() for o in each(self._device_options, Option)),
            seed_handle=self._seed_handle,
            device_iterations=self._device_iterations,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Metadata) and self.to_io() == other.to_io()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        names = [anchor.name() for anchor in self._anchors]
        return f"<Metadata of {self._executable!r} anchors={names}>"
