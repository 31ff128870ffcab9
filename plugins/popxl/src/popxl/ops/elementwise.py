"""Elementwise operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

from popxl import current, dtypes
from popxl.context import ipu, tiles
from popxl.errors import UndefinedValue
from popxl.ops.utils import cast_if_needed, check_inputs, emit, scalar
from popxl.tensor import Tensor, constant

FloatFormat = Literal["auto", "fixed", "scientific", "none"]
_Unary = Callable[[Tensor], Tensor]
_Binary = Callable[[Tensor, Tensor], Tensor]


def _unary(name: str, type_: str, words: str) -> _Unary:
    result = f"{name[:-1]}_inplace_out" if name.endswith("_") else f"{name}_out"

    def operator(t: Tensor) -> Tensor:
        return emit(type_, {"t": t}, [result])[0]

    operator.__name__ = operator.__qualname__ = name
    operator.__doc__ = words
    return operator


def _binary(name: str, type_: str, words: str) -> _Binary:
    def operator(lhs: Tensor, rhs: Tensor) -> Tensor:
        return emit(type_, {"lhs": lhs, "rhs": rhs}, [f"{name}_out"])[0]

    operator.__name__ = operator.__qualname__ = name
    operator.__doc__ = words
    return operator


abs = _unary("abs", "Abs", "Absolute values.")
ceil = _unary("ceil", "Ceil", "Rounded up.")
floor = _unary("floor", "Floor", "Rounded down.")
sign = _unary("sign", "Sign", "-1, 0 or 1.")
cos = _unary("cos", "Cos", "Cosines of radians.")
sin = _unary("sin", "Sin", "Sines of radians.")
tanh = _unary("tanh", "Tanh", "Hyperbolic tangents.")
exp = _unary("exp", "Exp", "Powers of e.")
exp_ = _unary("exp_", "ExpInplace", "Powers of e, in place.")
log = _unary("log", "Log", "Natural logarithms.")
negate = _unary("negate", "Neg", "The negative.")
relu = _unary("relu", "Relu", "max(t, 0).")
relu_ = _unary("relu_", "ReluInplace", "max(t, 0), in place.")
sqrt = _unary("sqrt", "Sqrt", "Square roots.")
gelu = _unary("gelu", "Gelu", "GELU by its tanh approximation.")
gelu_ = _unary("gelu_", "GeluInplace", "GELU (tanh), in place.")
geluerf = _unary("geluerf", "GeluErf", "GELU by the error function.")
geluerf_ = _unary("geluerf_", "GeluErfInplace", "GELU (erf), in place.")
swish = _unary("swish", "Swish", "t * sigmoid(t).")
swish_ = _unary("swish_", "SwishInplace", "t * sigmoid(t), in place.")
isnan = _unary("isnan", "IsNaN", "Which elements are NaN.")
isinf = _unary("isinf", "IsInf", "Which elements are infinite.")
detach = _unary("detach", "Detach", "The same, without gradients.")
add = _binary("add", "Add", "lhs + rhs, broadcast.")
sub = _binary("sub", "Sub", "lhs - rhs, broadcast.")
mul = _binary("mul", "Mul", "lhs * rhs, broadcast.")
div = _binary("div", "Div", "lhs / rhs, broadcast; integers are truncated.")
fmod = _binary("fmod", "Fmod", "The remainder, of the sign of lhs.")
equal = _binary("equal", "Equal", "Where both are equal.")


def detach_(t: Tensor) -> Tensor:
    """Return a view of the values without gradients."""
    return emit("DetachInplace", {"t": t}, ["detach_out"])[0]


def add_(lhs: Tensor, rhs: Tensor) -> Tensor:
    """lhs + rhs, into lhs."""
    inputs = {"lhs": lhs, "rhs": rhs}
    return emit("AddLhsInplace", inputs, ["add_lhs_inplace_out"])[0]


def log2(t: Tensor) -> Tensor:
    """Return logarithms to base 2."""
    return div(log(t), log(constant(2, t.dtype)))


def pow(t: Tensor, e: Any) -> Tensor:
    """Return `t` to the power of `e`, a tensor or a constant of `t`'s type."""
    exponent = e if isinstance(e, Tensor) else constant(e)
    return emit("Pow", {"t": t, "e": exponent}, ["pow_out"])[0]


def clip(t: Tensor, min: float = float("-inf"), max: float = float("inf")) -> Tensor:
    """Return the values, limited to `min` and `max`."""
    attributes = {"min": float(min), "max": float(max)}
    return emit("Clip", {"t": t}, ["clip_out"], attributes)[0]


clamp = clip


def isfinite(t: Tensor) -> Tensor:
    """Return where elements are neither infinite nor NaN."""
    found = logical_not(logical_or(isnan(t), isinf(t)))
    return identity(found, "isfinite_out")


def logical_not(t: Tensor) -> Tensor:
    """Return where `t` is False (or 0)."""
    return emit("Not", {"t": cast_if_needed(t, dtypes.bool)}, ["not_out"])[0]


def logical_and(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return where both are True (or not 0)."""
    return _logical("And", lhs, rhs)


def logical_or(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return for each element whether one of the two is True (or not 0)."""
    return _logical("Or", lhs, rhs)


def _logical(type_: str, lhs: Tensor, rhs: Tensor) -> Tensor:
    left, right = (cast_if_needed(t, dtypes.bool) for t in (lhs, rhs))
    return emit(type_, {"lhs": left, "rhs": right}, [f"{type_.lower()}_out"])[0]


def greater(input: Tensor, other: Tensor) -> Tensor:
    """Return where `input` is greater."""
    return emit("Greater", {"input": input, "other": other}, ["greater_out"])[0]


def maximum(*ts: Tensor) -> Tensor:
    """Return the largest value at each position."""
    return emit("Max", ts, ["maximum_out"])[0]


def where(condition: Tensor, lhs: Tensor, rhs: Tensor) -> Tensor:
    """Return `lhs` if the condition holds, else `rhs`, element by element."""
    chosen = cast_if_needed(condition, dtypes.bool)
    inputs = {"condition": chosen, "lhs": lhs, "rhs": rhs}
    return emit("Where", inputs, ["where_out"])[0]


def increment_mod(t: Tensor, increment: float, modulus: float) -> Tensor:
    """(t + increment) modulo modulus."""
    attributes = {"increment": float(increment), "modulus": float(modulus)}
    return emit("IncrementMod", {"t": t}, ["increment_mod_out"], attributes)[0]


def increment_mod_(t: Tensor, increment: float, modulus: float) -> Tensor:
    """(t + increment) modulo modulus, in place."""
    attributes = {"increment": float(increment), "modulus": float(modulus)}
    name = "increment_mod_inplace_out"
    return emit("IncrementModInplace", {"t": t}, [name], attributes)[0]


def identity(t: Tensor, output_name: str | None = None) -> Tensor:
    """Return the values under another name."""
    name = output_name
    if name is None and isinstance(t, Tensor):
        name = f"identity_{t.name}"
    return emit("Identity", {"t": t}, [name])[0]


rename = identity


def scaled_add(X: Tensor, Y: Tensor, a: Any = 1.0, b: Any = 1.0) -> Tensor:
    """a * X + b * Y."""
    return _scaled_add("ScaledAdd", X, Y, a, b, "scaled_add_out")


def scaled_add_(X: Tensor, Y: Tensor, a: Any = 1.0, b: Any = 1.0) -> Tensor:
    """a * X + b * Y, into X."""
    name = f"scaled_add__{X.name}" if isinstance(X, Tensor) else ""
    return _scaled_add("ScaledAddLhsInplace", X, Y, a, b, name)


def _scaled_add(type_: str, x: Tensor, y: Tensor, a: Any, b: Any, name: str) -> Tensor:
    inputs = [x, y]
    attributes = {"a": scalar(a, inputs), "b": scalar(b, inputs)}
    named = dict(zip(("X", "Y", "a", "b"), inputs, strict=False))
    return emit(type_, named, [name], attributes)[0]


class PrintTensorFmt(NamedTuple):
    """Format of `print_tensor`: its parameters of the same names."""

    summarise_threshold: int = 1000
    edge_items: int = 3
    max_line_width: int = 75
    digits: int = 8
    float_format: FloatFormat = "auto"
    separator: str = " "
    open_bracket: str = "["
    close_bracket: str = "]"


def print_tensor(
    t: Tensor,
    title: str | None = None,
    print_self: bool = True,
    print_gradient: bool = False,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 75,
    digits: int = 8,
    float_format: FloatFormat = "auto",
    separator: str = " ",
    open_bracket: str = "[",
    close_bracket: str = "]",
) -> Tensor:
    """Print the tensor to stderr whenever the operator runs; return the tensor
    unchanged.
    """
    check_inputs(t=t)
    for name, text in (
        ("separator", separator),
        ("open_bracket", open_bracket),
        ("close_bracket", close_bracket),
    ):
        if len(text) != 1:
            raise ValueError(f"{name} must be one character, found {text!r}")
    if float_format not in get_args(FloatFormat):
        raise KeyError(float_format)
    attributes = {
        "title": f"print_{t.name}" if title is None else title,
        "print_self": print_self,
        "print_gradient": print_gradient,
        "summarise_threshold": summarise_threshold,
        "edge_items": edge_items,
        "max_line_width": max_line_width,
        "digits": digits,
        "float_format": float_format,
        "separator": separator,
        "open_bracket": open_bracket,
        "close_bracket": close_bracket,
    }
    return emit("PrintTensor", {"t": t}, ["print_out"], attributes)[0]


def ipu_copy(t: Tensor, destination: int, source: int | None = None) -> Tensor:
    """Copy the tensor to another device."""
    check_inputs(t=t)
    if source is None:
        try:
            source = t.ipu
        except UndefinedValue:
            # Assume that an input that nothing reads yet is where its graph is made.
            source = current.settings().ipu if t._below.kind == "input" else None
        if source is None:
            raise ValueError(
                f"Could not infer the ipu of tensor {t.id!r}. Please specify `source`"
            )
    with ipu(destination):
        name = f"{t.name}_c{destination}"
        attributes = {"source": source, "destination": destination}
        return emit("IpuCopy", {"t": t}, [name], attributes, together=False)[0]


def io_tile_copy(t: Tensor) -> Tensor:
    """Copy the tensor to the other kind of tiles."""
    check_inputs(t=t)
    try:
        source = t.tile_set
    except UndefinedValue:
        source = "compute"
    with tiles("compute" if source == "io" else "io"):
        name = f"{t.name}_iotilecopy"
        return emit("IoTileCopy", {"t": t}, [name], together=False)[0]
