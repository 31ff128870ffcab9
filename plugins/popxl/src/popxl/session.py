"""Sessions: a program on a device."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, TypeAlias

import numpy as np

import popart
import popir
from popir.session import ProgramSession
from popxl import utils
from popxl.ir import Ir
from popxl.streams import DeviceToHostStream, HostToDeviceStream, Stream
from popxl.tensor import Constant, Tensor, Variable
from popxl.utils import _to_device_info, downcast_np_dtypes

_Array: TypeAlias = np.ndarray[Any, Any]
h2dStreamBufferMaps = Mapping[HostToDeviceStream, Any]  # noqa: N816
d2hStreamBufferMaps = Mapping[DeviceToHostStream, _Array]  # noqa: N816
StreamBufferMaps = Mapping[Stream, Any]
_UNREADABLE = ("int8", "uint8", "complex64", "complex128")


class Session:
    """One program, ready to run.

    device_desc: 'cpu' and 'ipu_model' run in this process, 'ipu_hw' on a device of the
    pool, which the session holds alone while it is attached.
    """

    def __init__(
        self, ir: Ir, device_desc: Any = "cpu", weights_to_host_on_exit: bool = True
    ) -> None:
        device = device_desc
        if not isinstance(device, popart.DeviceInfo):
            count = ir._below.device_count() * ir.instance_replication_factor
            device = _to_device_info(device_desc, count)
        self._ir = ir
        self.weights_to_host_on_exit = weights_to_host_on_exit
        self._was_attached: list[bool] = []
        self._device = device
        anchors = {
            s.tensor_id: popart.AnchorReturnType("All")
            for s in ir.get_all_d2h_streams()
        }
        ir._pb_ir.setDataFlow(popart.DataFlow(ir.num_host_transfers, anchors))
        # Programs override these two methods to skip compiling and weights.
        self._pb_session = popart.InferenceSession.fromIr(ir._pb_ir, device)
        self._pb_session.printer = print_tensor
        try:
            self._pb_session.prepareDevice(loadEngine=device.isAttached)
        except popir.IrError as error:
            if "has no graphs" in str(error):
                raise RuntimeError(str(error)) from None
            raise
        ir._below.is_prepared = True
        # After this no graph may change.
        self._h2d = {s: self._form_of(s) for s in ir.get_all_h2d_streams()}
        self._d2h = {s: self._form_of(s) for s in ir.get_all_d2h_streams()}
        ir._write_dot("FINAL")
        self._set_current(True)
        if device.isAttached:
            self.weights_from_host()

    @property
    def _session(self) -> ProgramSession:
        """Return the running session; there is none if preparing was replaced."""
        below = self._pb_session._running
        if below is None:
            raise popir.IrError("the session was not prepared")
        return below

    def _written(self) -> frozenset[popir.IrTensor]:
        below = self._pb_session._running
        return frozenset() if below is None else below.program.written

    def _set_device(self, device: popart.DeviceInfo) -> None:
        """Attach another device."""
        self._device = device
        self._pb_session._device = device

    @property
    def device(self) -> popart.DeviceInfo:
        """Return the device; setting it does nothing."""
        return self._device

    @device.setter
    def device(self, _: Any) -> None:
        pass

    @property
    def ir(self) -> Ir:
        """The program's Ir."""
        return self._ir

    ir_ = ir

    @property
    def is_attached(self) -> bool:
        """Return whether it holds its device."""
        return self._device.isAttached

    def expected_inputs(self) -> set[HostToDeviceStream]:
        """Return the streams for which `run` needs data."""
        return set(self._h2d)

    def _form_of(self, stream: Stream) -> _Form:
        transfers = self._ir.num_host_transfers
        replicas = self._ir.instance_replication_factor
        below, dtype = stream._tensor._below, stream.dtype.as_numpy()
        return _Form(below, stream.shape, transfers, replicas, dtype)

    def create_host_outputs(self) -> dict[DeviceToHostStream, _Array]:
        """Return an empty array for each output stream."""
        return {
            stream: np.empty(form.shape, form.dtype)
            for stream, form in self._d2h.items()
        }

    def run(
        self,
        inputs: Mapping[HostToDeviceStream, Any] | None = None,
        downcast_inputs: bool = True,
    ) -> dict[DeviceToHostStream, _Array]:
        """Run the main graph once; return the data of its output streams."""
        outputs = self.create_host_outputs()
        self.run_with_outputs(inputs, outputs, downcast_inputs)
        return outputs

    def run_with_outputs(
        self,
        inputs: Mapping[HostToDeviceStream, Any] | None = None,
        outputs: Mapping[DeviceToHostStream, _Array] | None = None,
        downcast_inputs: bool = True,
    ) -> None:
        """Run the main graph once, into arrays of the caller's."""
        self._check_attached()
        given = {
            stream: _host_array(data, downcast_inputs)
            for stream, data in (inputs or {}).items()
        }
        self._validate_run_inputs(given)
        self._validate_run_outputs(outputs or {})
        arrays: dict[popir.IrTensor, _Array] = {}
        for stream, data in given.items():
            form = self._h2d[stream]
            arrays[form.tensor] = _as_type(form.rows(data), form.dtype)
        into: dict[popir.IrTensor, _Array] = {}
        late: list[tuple[_Array, _Array]] = []
        for sink, array in (outputs or {}).items():
            form = self._d2h[sink]
            rows = form.rows(array)
            if rows.dtype != form.dtype or not np.may_share_memory(rows, array):
                rows = np.empty(rows.shape, form.dtype)
                late.append((array, rows))
            into[form.tensor] = rows
        self._set_current(not self._written())
        self._session.run(arrays, into)
        for array, made in late:
            array[...] = made.reshape(array.shape)

    def _validate_run_inputs(self, inputs: Mapping[HostToDeviceStream, Any]) -> None:
        _validate(inputs, self._h2d, "inputs")

    def _validate_run_outputs(self, outputs: Mapping[DeviceToHostStream, Any]) -> None:
        _validate(outputs, self._d2h, "outputs")

    # Weights

    def weights_to_host(self) -> None:
        """Copy the device's state to the host's copies. Raises ValueError if the
        session is detached.
        """
        self._check_attached()
        for variable in self._written():
            assert variable.data is not None
            if not variable.data.flags.writeable:
                raise Exception(
                    f"The memory-mapped data of {variable.id!r} are read-only"
                )
        self._pb_session.weightsToHost()
        for variable in self._written():
            if isinstance(variable.data, np.memmap):
                variable.data.flush()
        self._set_current(True)

    def weights_from_host(self) -> None:
        """Copy the host's values to the device. Raises ValueError if the session is
        detached.
        """
        self._check_attached()
        self._pb_session.weightsFromHost()
        self._set_current(True)

    def get_tensor_data(self, tensor: Variable | Constant) -> _Array:
        """Return a variable's values: the host's copy, updated first if attached."""
        return self.get_tensors_data([tensor])[tensor]

    def get_tensors_data(
        self, tensors: Iterable[Variable | Constant]
    ) -> dict[Tensor, _Array]:
        """Return the values of variables: the host's copies, updated first if
        attached.
        """
        wanted = list(tensors)
        for tensor in wanted:
            if not isinstance(tensor, Variable | Constant):
                raise TypeError(f"{tensor} is not of type Constant or Variable")
            if tensor.dtype.name in _UNREADABLE:
                raise ValueError(f"{tensor.id}: {tensor.dtype} cannot be read back")
        if self.is_attached and not self._pb_session.areHostWeightsInSync():
            variables = {Tensor._of(v) for v in self._written()}
            if variables.intersection(wanted):
                self.weights_to_host()
        return {tensor: _host_copy(tensor) for tensor in wanted}

    def write_variable_data(self, tensor: Variable, data: Any) -> None:
        """Set the value of a variable. If the session is attached, the value is sent to
        the device immediately.
        """
        self.write_variables_data({tensor: data})

    def write_variables_data(self, tensors: Mapping[Variable, Any]) -> None:
        """Set the values of variables. Changes that the device made to any variable
        since its weights were last copied back are lost.
        """
        checked = {tensor: _checked(tensor, d) for tensor, d in tensors.items()}
        for tensor, array in checked.items():
            data = tensor._below.data
            assert data is not None
            data[...] = array
        if self.is_attached:
            self.weights_from_host()

    # Attaching

    def __enter__(self) -> Session:
        was_attached = self.is_attached
        if not was_attached:
            self._device.setOnDemandAttachTimeout(
                utils.HW_DEVICE_CONNECTION_TIMEOUT / 1000
            )
            if not self._device.tryAttachUntilTimeout():
                raise popir.RunError(
                    f"Failed to acquire {self._device!r}: no device was free for "
                    f"{utils.HW_DEVICE_CONNECTION_TIMEOUT} ms"
                )
            try:
                self.weights_from_host()
            except BaseException:
                self._detach()
                raise
        self._was_attached.append(was_attached)
        return self

    def __exit__(self, kind: object, *_: object) -> Literal[False]:
        if not self._was_attached.pop():
            try:
                if kind is None and self.weights_to_host_on_exit:
                    self._leave()
            finally:
                self._detach()
        return False

    def _detach(self) -> None:
        self._device.detach()
        self._set_current(True)

    def _leave(self) -> None:
        """Copy the weights back, except into read-only files."""
        data = [variable.data for variable in self._written()]
        is_read_only = any(d is not None and not d.flags.writeable for d in data)
        # If a run was cut off, the device's state is lost; the error was raised then.
        below = self._pb_session._running
        current = below is None or below.host_is_current or below.is_lost
        if not (current or is_read_only):
            self.weights_to_host()

    def _check_attached(self) -> None:
        if not self.is_attached:
            raise ValueError(
                "The session is not attached to its device: use `with session:`"
            )

    def _set_current(self, current: bool) -> None:
        for variable in self._written():
            variable.is_current = current


@dataclass(frozen=True, slots=True)
class _Form:
    """Form of a stream's arrays."""

    tensor: popir.IrTensor
    of_one: tuple[int, ...]
    """Of one transfer to one replica."""
    transfers: int
    replicas: int
    dtype: np.dtype[Any]

    @property
    def lead(self) -> tuple[int, ...]:
        """Return the first dimensions: transfers and replicas, each if there are
        several.
        """
        return tuple(n for n in (self.transfers, self.replicas) if n > 1)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the array for a run."""
        return (*self.lead, *self.of_one)

    def rows(self, array: _Array) -> _Array:
        """Return an array of the caller's with a first dimension of transfers, and
        a second of replicas if there are several.
        """
        rest = self.of_one if self.replicas == 1 else (self.replicas, *self.of_one)
        count = 1 if self.transfers == 1 else len(array)
        return array.reshape(count, *rest)

    def check(self, array: _Array) -> None:
        """Raise ValueError if `array` has another shape.

        Dimensions of one may be added or left out if the order stays clear.
        """
        found, lead = array.shape, len(self.lead)
        if found == self.shape:
            return
        several = self.transfers > 1
        if several and (not found or found[0] < self.transfers):
            raise ValueError(
                f"Stream {self.tensor.id!r}: the first dimension must be "
                f"{self.transfers} (num_host_transfers) at least, found {list(found)}"
            )
        if self.replicas > 1 and found[several : several + 1] != (self.replicas,):
            raise ValueError(
                f"Shape mismatch of stream {self.tensor.id!r}: expected a dimension "
                f"of {self.replicas} replicas in {list(self.shape)}, found "
                f"{list(found)}"
            )
        if np.squeeze(array).ndim <= lead and prod(found[lead:]) == prod(self.of_one):
            return
        if found[lead:] != self.of_one:
            raise ValueError(
                f"Shape mismatch of stream {self.tensor.id!r}: expected "
                f"{list(self.shape)}, found {list(found)}"
            )


def _validate(given: Mapping[Any, Any], wanted: Mapping[Any, _Form], word: str) -> None:
    if given.keys() != wanted.keys():
        missing = sorted(s.tensor_id for s in set(wanted) - set(given))
        more = sorted(getattr(s, "tensor_id", str(s)) for s in set(given) - set(wanted))
        raise ValueError(
            f"Unexpected/Missing {word}. Missing: {missing}. Unexpected: {more}"
        )
    for stream, array in given.items():
        wanted[stream].check(np.asarray(array))


def _host_array(data: Any, downcast: bool) -> _Array:
    array = utils._host_array(data)
    if downcast and array.dtype in downcast_np_dtypes:
        return array.astype(downcast_np_dtypes[array.dtype])
    return array


def _as_type(array: _Array, wanted: np.dtype[Any]) -> _Array:
    if array.dtype != wanted:
        return array.astype(wanted)
    return np.ascontiguousarray(array)


def _host_copy(tensor: Tensor) -> _Array:
    """Return the host's copy: of each group, or of each replica if all are
    retrieved.
    """
    whole = tensor._below.placement.retrieved
    if whole is not None:
        return whole
    data = tensor._below.data
    assert data is not None
    return data


def _checked(tensor: Variable, data: Any) -> _Array:
    if not isinstance(tensor, Variable):
        name = getattr(tensor, "id", repr(tensor))
        raise TypeError(f"Tensor {name} is not of type Variable")
    if tensor._below.placement.retrieved is not None:
        raise NotImplementedError(
            f"{tensor.id}: a variable of which all replicas are retrieved cannot be "
            "written"
        )
    numpy_type = tensor.dtype.as_numpy()
    if isinstance(data, bool | int | float):
        if numpy_type.names:
            raise TypeError(f"A number cannot be written to {tensor.dtype}")
        array = np.asarray(data, numpy_type)
    else:
        array = _host_array(data, downcast=False)
    if array.dtype != numpy_type:
        raise TypeError(
            f"{tensor.id} has type {tensor.dtype}, but the data are {array.dtype}"
        )
    if array.shape != tensor.shape_on_host:
        raise ValueError(
            f"{tensor.id} has shape {tensor.shape_on_host}, but the data have "
            f"{array.shape}"
        )
    return array


def print_tensor(operator: popir.Operator, value: _Array) -> None:
    """Print a print operator's tensor to stderr."""
    given = operator.attributes
    if not given["print_self"]:
        return
    precision = {"fixed": "f", "scientific": "e"}.get(given["float_format"])
    digits = given["digits"]
    formatter: Any = None
    if precision and value.dtype.kind == "f":
        formatter = {"float_kind": lambda x: f"{x:.{digits}{precision}}"}
    text = np.array2string(
        value,
        max_line_width=given["max_line_width"],
        precision=digits,
        separator=given["separator"],
        threshold=given["summarise_threshold"],
        edgeitems=given["edge_items"],
        formatter=formatter,
    )
    brackets = str.maketrans("[]", given["open_bracket"] + given["close_bracket"])
    sys.stderr.write(f"{given['title']}: {text.translate(brackets)}\n")
