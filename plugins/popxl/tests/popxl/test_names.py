"""Every name of the original's `popxl` and what its programs use of `popart`.

names.txt beside this file lists them. docs/reference/popxl-names.md is made of that
list, of the modules and of the notes here:
`python -m plugins.popxl.tests.popxl.test_names` writes it.
"""

from __future__ import annotations

import fnmatch
import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parents[3] / "docs" / "reference" / "popxl-names.md"
NAMES = (HERE / "names.txt").read_text().split()

#: Reasons that several names share.
_RANDOM = (
    "Values are a function of the seed. The generator of an IPU is not public, so its "
    "bits differ."
)
_HINT = "Kept and given back, without effect: ONNX Runtime has no such setting."
_POOL = "`out_pads` and `in_dilations` are refused: ONNX has no such pools."
_FP8 = "A dataclass of PopGate: the members of the original's are not documented."
#: By pattern: how names differ, and why.
DIFFERS = {
    "popxl.ops.dropout": _RANDOM,
    "popxl.ops.shaped_dropout": _RANDOM,
    "popxl.ops.random_*": _RANDOM,
    "popxl.ops.split_random_seed": _RANDOM,
    "popxl.ops.roi_align": "There is no gradient for `sampling_ratio=0`: the number of "
    "samples then depends on the data, and shapes of a graph may not.",
    "popxl.ops.average_pool": _POOL,
    "popxl.ops.max_pool": _POOL,
    "popxl.transforms.autodiff": "Gradient graphs can be differentiated again, except "
    "through convolutions and normalisations by groups, which have no second gradient.",
    "popxl.context.op_debug_context": "Accepted, without effect: PopGate writes no "
    "profiles, which are what shows these names.",
    "popxl.context.debug_context_frame_offset": "Accepted, without effect: PopGate "
    "writes no profiles, which are what shows lines of programs.",
    "popxl.context._execution_context": "Operators that bring weights from and to the "
    "host are apart. Those of other fragments run where they stand: PopGate has no "
    "loop of accumulation around them.",
    "popart._internal.ir.patterns.*": "Accepted, without effect: ONNX Runtime chooses "
    "how it rewrites graphs.",
    "popart._internal.ir.MultiConvOptions": _HINT,
    "popart._internal.ir.Settings": "Read only: contexts of popxl set what it says.",
    "popart._internal.ir.op.MatMulPartialsType": _HINT,
    "popxl.fp8_utils.*Def": _FP8,
    "popxl.fp8_utils.*_def": _FP8,
    "popxl.fp8_utils.CandidateConfig": _FP8,
    "popxl.fp8_utils.calculate_*": "The parameters are PopGate's: the original's are "
    "not documented.",
    "popart.views.IrView.setPatterns": "Accepted, without effect: ONNX Runtime chooses "
    "how it rewrites graphs.",
    "popart.views.IrView.updateVertices": "Accepted, without effect: PopGate orders "
    "operators when it compiles.",
    "popart.views.OpView.*Conv*": _HINT,
    "popart.views.OpView.getPartialsType": _HINT,
    "popart._internal.ir": "Views that answer questions about graphs: programs make "
    "graphs with popxl.",
}
#: By pattern: remarks on names that work.
REMARKS = {
    "popxl.ipu": "recorded; results do not depend on it",
    "popxl.io_tiles": "recorded; results do not depend on it",
    "popxl.ops.ipu_copy": "a copy; there is one place",
    "popxl.ops.io_tile_copy": "a copy; there is one place",
    "popxl.ops.remote_code_load": "recorded and checked; it moves nothing",
    "popxl.transforms.merge_exchange": "one operator; nothing runs in another order",
    "popxl.transforms.io_tile_exchange": "one operator; nothing runs in another order",
    "popxl.tensor.Tensor": "as there no item assignment: `t[1] += x` is Python's "
    "TypeError, `ops.slice_` gives what can be written through",
    "popart.DeviceManager.createSimDevice": "software, as createIpuModelDevice",
    "popart.DataFlow": "sets the slices of a run; streams say what is anchored",
    "popart.views.IrView.setDataFlow": "sets the slices of a run",
    "popxl.ops.code_copy.code_copy": "NotImplementedError, as in the original",
    "popxl.ops.collectives.collectives.OP_MAP": "`mul` stands for the mean, as in the "
    "original",
    "popdist.*": "see "
    "[instances](../how-to/write-popxl.md#several-instances-of-a-program)",
    "popxl.dtype.__init__": "refuses, as the original does",
}
#: By pattern: names that are not there, and why.
WITHOUT: dict[str, str] = {}


HEAD = """\
# Names of `popxl` and `popart`

Every name of the original's index and of what its programs import, and how it is here.
This page is made by [test_names.py](../../plugins/popxl/tests/popxl/test_names.py).
"""
TAIL = """\
Cannot be: C++ custom operators, profiles and cycle counts, tile mapping, the bits of an
IPU's random numbers.

| Name | | |
| --- | --- | --- |
"""


def _note(name: str, notes: dict[str, str]) -> str | None:
    for pattern, text in notes.items():
        if fnmatch.fnmatchcase(name, pattern):
            return text
    return None


def found(name: str) -> Any:
    """What a dotted name leads to; AttributeError where there is nothing."""
    parts = name.split(".")
    value: Any = None
    for count in range(len(parts) - 1, 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        try:
            for part in parts[count:]:
                value = _member(value, part)
        except AttributeError:
            continue
        return value
    raise AttributeError(name)


def _member(value: Any, part: str) -> Any:
    if inspect.isclass(value) and part in getattr(value, "__annotations__", {}):
        return value.__annotations__[part]
    try:
        return inspect.getattr_static(value, part)
    except AttributeError:
        # What instances have from `__init__` on.
        source = inspect.getsource(value) if inspect.isclass(value) else ""
        if f"self.{part} = " in source or f"self.{part}: " in source:
            return part
        return getattr(value, part)


def rows() -> list[tuple[str, str, str]]:
    """Each name, how it is with it, and a remark."""
    result = []
    for name in NAMES:
        if (why := _note(name, WITHOUT)) is not None:
            status = "no"
        elif (why := _note(name, DIFFERS)) is not None:
            status = "differs"
        else:
            status, why = "works", _note(name, REMARKS) or ""
        result.append((name, status, why))
    return result


def page() -> str:
    """The documentation page."""
    counts: dict[str, int] = {}
    for _, status, _ in rows():
        counts[status] = counts.get(status, 0) + 1
    totals = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
    lines = [f"{HEAD}\n{len(NAMES)} names: {totals}.", *TAIL.splitlines()]
    lines += [f"| `{name}` | {status} | {why} |" for name, status, why in rows()]
    return "\n".join([*lines, ""])


@pytest.mark.parametrize("start", range(0, len(NAMES), 100))
def test_names_are_there(start: int) -> None:
    missing = []
    for name, status, _ in rows()[start : start + 100]:
        try:
            found(name)
        except AttributeError:
            if status in ("works", "differs"):
                missing.append(name)
        else:
            if status == "no":
                missing.append(f"{name} is there")
    assert missing == []


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page()


def test_importing_popxl_imports_neither_onnx_nor_the_engine() -> None:
    text = (
        "import sys, popxl; names = ('onnx', 'onnxruntime', 'engine', 'torch')\n"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


if __name__ == "__main__":
    PAGE.write_text(page())
