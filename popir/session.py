"""A program on a device: attaching, running, and which copy of the weights is current.

The host's copies are the data of the program's variables. They go to the device when
it is attached, and come back when they are asked for: every run makes them stale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from popir.dtypes import Array, to_carrier
from popir.errors import IrError
from popir.ir import Ir, Operator, Tensor

if TYPE_CHECKING:
    from engine import LocalSession
    from popir.lowering.compile import Program

Printer: TypeAlias = Callable[[Operator, Array], object]
DETACHED = "the session is not attached to its device"


class Session:
    """One compiled program in the caller's process.

    check_order: refuse programs whose result depends on an order that nothing fixes.
    Raises IrError where the program is wrong, NotYet for what does not run yet.
    Not thread-safe.
    """

    def __init__(
        self, ir: Ir, *, check_order: bool = True, printer: Printer | None = None
    ) -> None:
        # Where something is lowered, onnx and the engine are needed; not before.
        from popir.lowering.compile import compile_ir

        self.program: Program = compile_ir(ir, check=check_order)
        self.host_is_current = True
        """Whether the host's copies of the variables are what the device has."""
        self._printer = printer
        self._device: LocalSession | None = None

    @property
    def is_attached(self) -> bool:
        """Whether it holds its device."""
        return self._device is not None

    def attach(self) -> None:
        """Take the device and bring the weights to it."""
        from engine import LocalSession

        if self._device is None:
            program = self.program
            self._device = LocalSession(program.executable, program.metadata)
            self.weights_from_host()

    def detach(self) -> None:
        """Give the device back; what it held is lost. Idempotent."""
        device, self._device = self._device, None
        if device is not None:
            device.close()
        self.host_is_current = True

    def run(
        self, inputs: Mapping[Tensor, Array], outputs: Mapping[Tensor, Array]
    ) -> None:
        """Run the main program once.

        Arrays are by the tensor of the stream, with a first dimension of transfers and
        of the carrier's type. Outputs are filled.
        """
        device, program = self._attached(), self.program
        given = {
            handle: to_carrier(inputs[tensor])
            for handle, tensor in program.inputs.items()
        }
        taken: dict[str, Any] = {
            handle: to_carrier(outputs[tensor])
            for handle, tensor in program.outputs.items()
        }
        for handle, operator in program.prints.items():
            taken[handle] = self._printing(operator)
        if program.written:
            self.host_is_current = False
        device.run(program.metadata.program_flow.main, given, taken)

    def weights_from_host(self) -> None:
        """Bring the host's copies to the device; what it had changed is lost."""
        from popir.lowering.compile import LOAD
        from popir.lowering.lower import input_handle

        data = {input_handle(t.id): _rows(t) for t in self.program.variables}
        self._attached().run([LOAD], data)
        self.host_is_current = True

    def weights_to_host(self) -> None:
        """Bring what the device has to the host's copies."""
        from popir.lowering.compile import SAVE
        from popir.lowering.lower import weight_handle

        places: dict[str, Any] = {
            weight_handle(t.id): _rows(t) if t in self.program.written else _nothing
            for t in self.program.variables
        }
        self._attached().run([SAVE], {}, places)
        self.host_is_current = True

    def _attached(self) -> LocalSession:
        if self._device is None:
            raise IrError(DETACHED)
        return self._device

    def _printing(self, operator: Operator) -> Callable[[Array], None]:
        printer = self._printer

        def show(value: Array) -> None:
            if printer is not None:
                printer(operator, value)

        return show


def _rows(variable: Tensor) -> Array:
    """A variable's host copy as a stream of one transfer, without a copy."""
    assert variable.data is not None
    return to_carrier(variable.data)[np.newaxis]


def _nothing(_: Array) -> None:
    """The host has it already: nothing changes it."""
