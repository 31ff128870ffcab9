"""A program on a device: attaching, running, and tracking the current copy of weights.

The host's copies are the data of the program's variables. They go to the device when it
is attached, and come back on request: every run makes them stale.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from popir.dtypes import Array, to_carrier
from popir.errors import IrError, NotYet, RunError, ValueOutOfRange
from popir.exchanges import Exchanges
from popir.float8 import MAX_SCALE, MIN_SCALE
from popir.ir import Ir, IrTensor, Operator
from popir.placement import collect, is_alone, retrieved, shares

if TYPE_CHECKING:
    from engine import Device
    from popir.caching import ProgramCache, Tell
    from popir.instances import Instances
    from popir.lowering.compile import Program

Printer: TypeAlias = Callable[[Operator, Array], object]
DETACHED = "the session is not attached to its device"


def _tell_nobody(level: str, text: str) -> None:
    """Discard the log lines of a session without a log."""


class ProgramRunner(Protocol):
    """Runs the programs: in this process or on a device of the pool."""

    def run(
        self,
        programs: Iterable[int],
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
    ) -> None: ...

    def close(self) -> None: ...


class ProgramSession:
    """One compiled program.

    check_order: refuse programs whose result depends on an order that nothing fixes.
    check_scales: a scale of float8 that is out of range ends a run, ValueOutOfRange.
    on_pool: it will run on devices of the pool; otherwise it runs in the caller's
    process. transfers: slices that each host array brings to a run; default: the Ir's.
    replicas: the number that run it together, in lockstep, in this process. instances:
    the processes that run the program; default: only this one. All instances must make
    the session, run it and copy weights to the host in the same order. cache: the
    folder of compiled programs, or None. around: other inputs of a compiled program.
    tell: receives lines for the log. Raises IrError if the program is wrong, NotYet for
    unsupported features. Runs of several threads follow one another.
    """

    def __init__(
        self,
        ir: Ir,
        *,
        check_order: bool = True,
        printer: Printer | None = None,
        check_scales: bool = False,
        on_pool: bool = False,
        transfers: int | None = None,
        replicas: int = 1,
        instances: Instances | None = None,
        cache: ProgramCache | None = None,
        around: object = None,
        tell: Tell = _tell_nobody,
    ) -> None:
        self.program: Program = _compiled(
            ir,
            tell,
            cache,
            around,
            check=check_order,
            check_scales=check_scales,
            transfers=transfers or ir.transfers,
            replicas=replicas,
            instances=1 if instances is None else instances.identity.count,
        )
        self._instances = instances
        self._total = replicas
        self._own = slice(0, replicas)
        if instances is not None:
            this = instances.identity
            self._total, self._own = (
                this.replicas,
                slice(this.offset, this.offset + replicas),
            )
        if on_pool and self.program.functions:
            (name, *_) = (op.type for op in self.program.functions.values())
            raise NotYet(
                f"{name} is a NumPy function, which devices of the pool do not run: "
                "use 'cpu' or 'ipu_model', or give the operator ONNX nodes"
            )
        if self._total > 1 and self.program.functions:
            raise NotYet("operators that are NumPy functions run on one replica only")
        ends = self.program.ends
        self._exchanges = (
            Exchanges(ends, instances) if ends.sent or ends.received else None
        )
        self._is_lockstep = self._total > 1
        # Only the caller's process has replicas and rows, not a device of the pool.
        on_pool = on_pool and not (self._is_lockstep or self._exchanges is not None)
        self.host_is_current = True
        """True if the host's copies of the variables equal the device's."""
        self._printer = printer
        self._on_pool = on_pool
        self._device: ProgramRunner | None = None
        self._turn = threading.RLock()
        self.is_lost = False
        """True if a run was cut off: the device's state is lost."""

    @property
    def is_on_pool(self) -> bool:
        """Return whether it runs on a device of the pool, not in this process."""
        return self._on_pool

    @property
    def is_attached(self) -> bool:
        """Return whether it holds its device."""
        return self._device is not None

    def attach(self, device: Device | None = None) -> None:
        """Attach the device, which is a device of the pool or None. This does not send
        the weights.
        """
        if self._device is None:
            with _explained():
                self._device = self._runner(device)
            self.is_lost = False

    def _runner(self, device: Device | None) -> ProgramRunner:
        program = self.program
        if self._is_lockstep:
            from popir.replicas import LockstepSession

            return LockstepSession(program, self._exchanges)
        if self._on_pool:
            from popir.device_runner import DeviceRunner

            assert device is not None
            return DeviceRunner(program, device)
        from popgate_sessions import LocalSession

        return LocalSession(program.executable, program.metadata)

    def detach(self) -> None:
        """Leave the device, whose state is lost. Idempotent."""
        device, self._device = self._device, None
        if device is not None:
            device.close()
        self.host_is_current = True

    def run(
        self, inputs: Mapping[IrTensor, Array], outputs: Mapping[IrTensor, Array]
    ) -> None:
        """Run the main program once.

        The keys are the tensors of the streams. Each array has the carrier's type, a
        first dimension of transfers, and a second of replicas if there are several.
        The run fills the outputs.
        """
        self._attached()
        program = self.program
        given: dict[str, Any] = {
            handle: self._by_replica(to_carrier(inputs[tensor]))
            for handle, tensor in program.inputs.items()
        }
        taken: dict[str, Any] = {
            handle: self._by_replica(to_carrier(outputs[tensor]))
            for handle, tensor in program.outputs.items()
        }
        for handle, operator in program.prints.items():
            taken[handle] = self._printing(operator)
        for name, operator in program.functions.items():
            _connect(name, operator, given, taken)
        taken |= dict.fromkeys(program.scales, _check_scale)
        if program.written:
            self.host_is_current = False
        self._run(program.metadata.program_flow.main, given, taken)

    def _by_replica(self, array: Array) -> Any:
        """Return an array of a stream, or that of each replica if there are several."""
        count = self.program.replicas
        if not self._is_lockstep:
            return array
        return [array] if count == 1 else [array[:, r] for r in range(count)]

    def _run(
        self,
        programs: Iterable[int],
        given: Mapping[str, Any],
        taken: Mapping[str, Any],
    ) -> None:
        with self._turn, _explained():
            if self._exchanges is not None and not self._is_lockstep:
                self._exchanges.begin()
                given = {**given, **self._exchanges.sources()}
                taken = {**taken, **self._exchanges.sinks()}
            try:
                self._attached().run(programs, given, taken)
            except (RunError, KeyboardInterrupt):
                self.is_lost = self._on_pool
                raise

    def weights_from_host(self) -> None:
        """Send the host's copies to the device; changes by the device are lost."""
        from popir.lowering.compile import LOAD
        from popir.lowering.lower import input_handle

        program = self.program
        for variable in program.remote:
            self._place(variable)
        if self._is_lockstep:
            data: dict[str, Any] = {
                input_handle(t.id): [s[np.newaxis] for s in self._shares(t)]
                for t in program.variables
            }
        else:
            data = {input_handle(t.id): _rows(t) for t in program.variables}
        self._run([LOAD], data, {})
        self.host_is_current = True

    def weights_to_host(self) -> None:
        """Copy the device's state to the host's copies."""
        from popir.lowering.compile import SAVE
        from popir.lowering.lower import weight_handle

        program = self.program
        if self._is_lockstep:
            self._replicas_to_host()
        else:
            places: dict[str, Any] = {
                weight_handle(t.id): _rows(t) if t in program.written else _nothing
                for t in program.variables
            }
            self._run([SAVE], {}, places)
        for variable in program.remote:
            self._fetch(variable)
        self.host_is_current = True

    def _replicas_to_host(self) -> None:
        from popir.lowering.compile import SAVE
        from popir.lowering.lower import weight_handle

        program = self.program
        found: dict[IrTensor, list[Array]] = {t: [] for t in program.variables}
        self._run([SAVE], {}, {weight_handle(t.id): found[t].append for t in found})
        for variable in program.variables:
            if variable in program.written:
                self._collect(variable, found[variable])

    def _collect(self, variable: IrTensor, values: Sequence[Array]) -> None:
        """Set the host's copy to the replicas' values; `values`: of those here."""
        assert variable.data is not None
        at, first = variable.placement, self._own.start
        everywhere = dict(enumerate(values, first))
        if self._instances is not None:
            name = f"weights to host ({variable.id})"
            wanted = retrieved(at, self._total)
            everywhere |= self._instances.gathered(name, everywhere, wanted)
        collect(to_carrier(variable.data), at, everywhere, self._total)

    def _shares(self, variable: IrTensor) -> list[Array]:
        """Return each local replica's part of a variable's host copy."""
        assert variable.data is not None
        data = to_carrier(variable.data)
        return shares(data, variable.placement, self._total)[self._own]

    def _place(self, variable: IrTensor) -> None:
        """Set the row of a remote variable to the host's value.

        A file that is mapped for writing is read and written in place, if no other
        replica has the same part of it.
        """
        at, data = variable.placement, variable.data
        assert at.buffer is not None
        assert data is not None
        in_file = isinstance(data, np.memmap) and data.flags.writeable
        alone = in_file and is_alone(at, self._total)
        for replica, part in enumerate(self._shares(variable)):
            in_place = alone and np.may_share_memory(part, data)
            at.buffer.place(replica, at.offset, part, in_place)

    def _fetch(self, variable: IrTensor) -> None:
        """Copy the row of a remote variable to the host's copy."""
        at, data = variable.placement, variable.data
        assert at.buffer is not None
        assert data is not None
        if not data.flags.writeable:
            return
        here = range(self.program.replicas)
        if not is_alone(at, self._total):
            # The host's new copy differs from the values of the other members.
            for replica in here:
                at.buffer.own(replica, at.offset)
        self._collect(variable, [at.buffer.peek(r, at.offset) for r in here])

    def _attached(self) -> ProgramRunner:
        if self._device is None:
            raise IrError(DETACHED)
        return self._device

    def _printing(self, operator: Operator) -> Callable[[Array], None]:
        printer = self._printer

        def show(value: Array) -> None:
            if printer is not None:
                printer(operator, value)

        return show


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Raise IrError if ONNX Runtime refuses the program, and RunError if a run of it
    fails. The device keeps its state.
    """
    from engine import ExecutionFailed, InvalidModel

    try:
        yield
    except InvalidModel as error:
        raise IrError(f"the program cannot be loaded: {error}") from error
    except ExecutionFailed as error:
        raise RunError(str(error)) from error


def _compiled(
    ir: Ir, tell: Tell, cache: ProgramCache | None, around: object, **options: Any
) -> Program:
    """Return the program of the cache, or compile it."""
    # Import here: only lowering needs onnx and the engine.
    from popir.lowering.compile import compile_ir

    key = None if cache is None else cache.key(ir, around=around, **options)
    if cache is not None and key is not None:
        found = cache.load(key, ir)
        if found is not None:
            program, path = found
            tell("DEBUG", f"Loading serialized PopART executable from {path}")
            return program
    tell("DEBUG", "Starting compilation")
    program = compile_ir(ir, **options)
    tell("DEBUG", "Compilation complete")
    if cache is not None and key is not None:
        cache.store(key, ir, program)
    return program


def _connect(
    name: str, operator: Operator, given: dict[str, Any], taken: dict[str, Any]
) -> None:
    """Connect the streams of a NumPy function, which is called when all its arguments
    have arrived.
    """
    from popir.lowering.lower import argument_handle, result_handle

    arguments: dict[int, Array] = {}
    results: dict[int, Array] = {}

    def take(number: int, value: Array) -> None:
        arguments[number] = value.copy()
        results.clear()

    def give(number: int) -> Array:
        if number not in results:
            found = _called(operator, [arguments[n] for n in sorted(arguments)])
            results.update(enumerate(found))
        return results.pop(number)

    for number in range(len(operator.inputs)):
        taken[argument_handle(name, number)] = partial(take, number)
    for number in range(len(operator.outputs)):
        given[result_handle(name, number)] = partial(give, number)


def _called(operator: Operator, arguments: list[Array]) -> list[Array]:
    """Call the NumPy function; RunError if its results differ from their
    declaration.
    """
    assert operator.record.host is not None
    found = [np.asarray(a) for a in operator.record.host(operator.call, arguments)]
    wanted = [t.spec for t in operator.outputs]
    if [a.shape for a in found] != [spec.shape for spec in wanted]:
        raise RunError(
            f"the NumPy function {operator.type} returned arrays of shapes "
            f"{[a.shape for a in found]}, not {[spec.shape for spec in wanted]}"
        )
    return [
        np.ascontiguousarray(a, spec.dtype.carrier).reshape(spec.shape)
        for a, spec in zip(found, wanted, strict=True)
    ]


def _check_scale(value: Array) -> None:
    scale = int(value)
    if not MIN_SCALE <= scale <= MAX_SCALE:
        raise ValueOutOfRange(
            f"log2_scale is {scale}; it must be from {MIN_SCALE} to {MAX_SCALE}"
        )


def _rows(variable: IrTensor) -> Array:
    """Return a variable's host copy as a stream of one transfer, without a copy."""
    assert variable.data is not None
    return to_carrier(variable.data)[np.newaxis]


def _nothing(_: Array) -> None:
    """Do nothing, because the host already has the value and no replica changes it."""
