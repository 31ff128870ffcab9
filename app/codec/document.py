"""The inference document, of any encoding, to a validated request.

JSON, msgpack and the header of a binary request all parse to the same dictionary, whose
rules are here. The long form is the protocol's. The shorthand is PopGate's: `inputs`
maps names to values, with shape and datatype from the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from app.codec.chunks import Chunks
from app.codec.inputs import Input
from app.codec.memory_check import reserve_copy
from app.codec.messages import InferRequest, Reply, count_rows, new_request
from app.codec.request_options import (
    extent_of,
    not_allowed,
    quoted,
    read_outputs,
    read_parameters,
)
from app.codec.shapes import check_depth, shown
from app.errors import BodyTooLarge, InvalidRequest, InvalidTensor
from app.limits import Limits
from app.regions import Regions
from app.spec import ModelSpec
from engine import Tensor

Document = dict[str, Any]

_SOURCES = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in "
    "'parameters', 'shared_memory_region' in 'parameters'"
)
NONE_ENCODED: Final[Mapping[str, Input]] = MappingProxyType({})


class DocumentReader:
    """Reads the documents of one model."""

    __slots__ = ("_encoded", "_expected", "_inputs", "_limits", "_regions", "spec")

    def __init__(
        self,
        spec: ModelSpec,
        limits: Limits,
        inputs: dict[str, Input],
        regions: Regions | None = None,
        encoded: Mapping[str, Input] = NONE_ENCODED,
    ) -> None:
        self.spec = spec
        self._encoded = encoded
        self._regions = regions
        self._inputs = inputs
        self._expected = len(spec.inputs)
        self._limits = limits

    def read(
        self,
        document: object,
        reply: Reply,
        tail: Chunks | None = None,
        *,
        maybe_bool: bool = True,
    ) -> InferRequest:
        """Return the request of a parsed document. `tail` holds its binary tensors.

        Raises InvalidRequest or InvalidTensor.
        """
        if type(document) is not dict:
            msg = (
                "expected an inference request, an object with 'inputs', "
                f"got {shown(document)}; send {self._form()}, or rows as "
                "'instances' to :predict"
            )
            raise InvalidRequest(msg)
        request = new_request(reply)
        get = document.get
        parameters = get("parameters")
        if parameters is not None:
            read_parameters(request, parameters, self._limits)
        inputs = get("inputs")
        if type(inputs) is list:
            self._read_inputs(request, inputs, tail, maybe_bool)
        else:
            self._read_shorthand(request, inputs, maybe_bool)
        if len(request.inputs) != self._expected and not self._are_enough(request):
            raise self._wrong_count(request.inputs)
        if tail is not None and tail.left:
            msg = f"unexpected additional input data for model '{self.spec.name}'"
            raise InvalidRequest(f"{msg}: {tail.left} bytes are left over")
        if self.spec.max_batch_size:
            count_rows(request, self.spec)
        known = 1 + (parameters is not None)
        outputs = get("outputs")
        if outputs is not None:
            known += 1
            read_outputs(request, outputs, self.spec, self._limits)
            if request.extents is not None and self._regions is None:
                raise not_allowed()
        identifier = get("id")
        if identifier is not None:
            known += 1
            if type(identifier) is not str:
                msg = f"'id' must be a string, got {shown(identifier)}"
                raise InvalidRequest(msg)
            request.id = identifier or None  # an empty id counts as none
        if len(document) > known:  # fields unknown to the protocol are ignored
            check_depth(document, self._limits)
        return request

    def complete(self, request: InferRequest) -> None:
        """Check that a request without a document has all required inputs.

        Raises InvalidTensor.
        """
        if len(request.inputs) != self._expected and not self._are_enough(request):
            raise self._wrong_count(request.inputs)
        if self.spec.max_batch_size:
            count_rows(request, self.spec)

    def _are_enough(self, request: InferRequest) -> bool:
        """Return whether the missing inputs may be omitted; fill in their defaults."""
        given, spec = request.inputs, self.spec
        if spec.optional_inputs:
            return len(given) > 0
        defaults = spec.defaults
        missing = [t.name for t in spec.inputs if t.name not in given]
        if any(name not in defaults for name in missing):
            return False
        rows = next((t.shape[0] for t in given.values() if t.shape), 1)
        for name in missing:
            given[name] = spec.default(name, rows)
        return True

    def _form(self) -> str:
        """Return the short form of a request, which is easy to read."""
        names = [tensor.name for tensor in self.spec.inputs]
        more = ", …" if len(names) > 1 else ""
        return f'{{"inputs": {{"{names[0] if names else "NAME"}": […]{more}}}}}'

    def _read_shorthand(
        self, request: InferRequest, inputs: object, maybe_bool: bool
    ) -> None:
        if type(inputs) is not dict:
            what = "is missing" if inputs is None else f"is {shown(inputs)}"
            msg = f"'inputs' {what}; expected a list of inputs or an object by name"
            raise InvalidRequest(f"{msg}, as in {self._form()}")
        null_is_nan = request.null_is_nan
        for name, value in inputs.items():
            request.inputs[name] = self.input_named(name).from_nested(
                value, maybe_bool=maybe_bool, null_is_nan=null_is_nan
            )

    def input_named(self, name: object) -> Input:
        found = self._inputs.get(name) if type(name) is str else None
        if found is None:
            if type(name) is not str:
                msg = f"'name' of an input must be a string, got {shown(name)}"
                raise InvalidRequest(msg)
            msg = (
                f"unexpected inference input '{name:.200}' for model "
                f"'{self.spec.name}'. Expected input(s) {quoted(self._inputs)}."
            )
            raise InvalidTensor(msg)
        return found

    def _read_inputs(
        self,
        request: InferRequest,
        items: list[Any],
        tail: Chunks | None,
        maybe_bool: bool,
    ) -> None:
        tensors = request.inputs
        for item in items:
            if type(item) is not dict:
                check_depth(items, self._limits, 1)
                msg = f"an input must be an object, got {shown(item)}"
                raise InvalidRequest(msg)
            get = item.get
            given = get("name")
            found = self._inputs.get(given) if type(given) is str else None
            model_input = self.input_named(given) if found is None else found
            name = model_input.name
            if name in tensors:
                raise InvalidRequest(f"input '{name}' already exists in request")
            datatype = get("datatype")
            if datatype != model_input.datatype:
                model_input = self._encoded_input(model_input, datatype)
            data, parameters = get("data"), get("parameters")
            accepted = model_input.accept(get("shape"))
            if data is None or parameters is not None:
                tensors[name] = self._read_source(
                    request, model_input, item, accepted, tail
                )
            else:
                tensors[name] = model_input.from_values(
                    data,
                    accepted,
                    maybe_bool=maybe_bool,
                    null_is_nan=request.null_is_nan,
                )

    def _encoded_input(self, model_input: Input, datatype: object) -> Input:
        """Return the input that takes files instead of numbers.

        Raises InvalidTensor if the input takes none, or `datatype` is not BYTES.
        """
        name = model_input.name
        found = self._encoded.get(name)
        if found is not None and datatype == found.datatype:
            return found
        also = "" if found is None else f" or '{found.datatype}'"
        given = f"'{datatype:.80}'" if isinstance(datatype, str) else shown(datatype)
        msg = (
            f"inference input '{name}' data-type is {given}, but "
            f"model '{self.spec.name}' expects '{model_input.datatype}'{also}"
        )
        raise InvalidTensor(msg)

    def _read_source(
        self,
        request: InferRequest,
        model_input: Input,
        item: Document,
        accepted: Any,
        tail: Chunks | None,
    ) -> Tensor:
        """Return the tensor of an input that has parameters, or no `data`."""
        name, data = model_input.name, item.get("data")
        parameters = item.get("parameters")
        if parameters is None:
            parameters = {}
        elif type(parameters) is not dict:
            msg = f"'parameters' of input '{name}' must be an object"
            raise InvalidRequest(f"{msg}, got {shown(parameters)}")
        size = parameters.get("binary_data_size")
        region = parameters.get("shared_memory_region")
        sources = (data is not None) + (size is not None) + (region is not None)
        if sources > 1:
            raise InvalidRequest(f"{_SOURCES}; input '{name}' sets {sources} of them")
        if region is not None:
            return self._read_region(request, model_input, parameters, accepted)
        if size is not None:
            return self._read_binary(model_input, size, accepted, tail)
        if data is None:
            if accepted[1]:
                raise InvalidRequest(f"{_SOURCES}; input '{name}' sets none of them")
            return model_input.from_bytes((), 0, accepted)
        is_base64 = parameters.get("content_type") == "base64"
        null_is_nan = request.null_is_nan
        return model_input.from_values(
            data, accepted, is_base64=is_base64, null_is_nan=null_is_nan
        )

    def _read_region(
        self,
        request: InferRequest,
        model_input: Input,
        parameters: Document,
        accepted: Any,
    ) -> Tensor:
        """Return the tensor of an input in shared memory: a copy of its present
        content. Raises `TakesLong` for a large one on the event loop.
        """
        if self._regions is None:
            raise not_allowed()
        extent = extent_of(f"input '{model_input.name}'", parameters)
        model_input.check_size(extent.byte_size, accepted)
        request.region_bytes += extent.byte_size
        if request.region_bytes > self._limits.max_body_bytes:
            msg = (
                f"inputs of {request.region_bytes} bytes in shared memory exceed the "
                f"maximum allowed input size of {self._limits.max_body_bytes} bytes. "
                "Use --http-max-input-size to increase the limit."
            )
            raise BodyTooLarge(msg)
        region = self._regions.find(extent.region)
        reserve_copy(extent.byte_size, request.region_bytes)
        data = region.read(extent.offset, extent.byte_size)
        request.read_from = (*request.read_from, region)
        try:
            return model_input.from_bytes((data,) if data else (), len(data), accepted)
        except (InvalidRequest, InvalidTensor):
            if region.owner is None:
                raise
            # The region may belong to another key, which is checked when the region is
            # held. Until then, no message may reveal its content.
            msg = (
                f"input '{model_input.name}': the bytes in shared memory region "
                f"'{extent.region}' are not a tensor of this datatype and shape"
            )
            raise InvalidRequest(msg) from None

    def _read_binary(
        self, model_input: Input, size: object, accepted: Any, tail: Chunks | None
    ) -> Tensor:
        name = model_input.name
        if type(size) is not int or size < 0:
            msg = (
                f"'binary_data_size' of input '{name}' must be a non-negative "
                f"integer, got {shown(size)}"
            )
            raise InvalidRequest(msg)
        left = 0 if tail is None else tail.left
        if size > left:
            msg = (
                f"unexpected size for input '{name}', expecting {size - left} "
                f"additional bytes for model '{self.spec.name}'"
            )
            if tail is None:
                msg += "; the header Inference-Header-Content-Length is missing"
            raise InvalidTensor(msg)
        parts = () if tail is None else tail.read(size)
        return model_input.from_bytes(parts, size, accepted)

    def _wrong_count(self, given: dict[str, Tensor]) -> InvalidTensor:
        names, defaults = self.spec.inputs_by_name, self.spec.defaults  # no aliases
        missing = [n for n in names if n not in given and n not in defaults]
        wanted = f"{self._expected} inputs"
        least = sum(name not in defaults for name in names)
        if 0 < least < self._expected:
            wanted = f"number of inputs between {least} and {self._expected}"
        return InvalidTensor(
            f"expected {wanted} but got {len(given)} inputs for model "
            f"'{self.spec.name}'. Got input(s) {quoted(given)}, but missing required "
            f"input(s) {quoted(missing)}. Please provide all required input(s)."
        )
