"""``sequence_batching`` of a ``config.pbtxt``: states, slots, what is refused."""

from __future__ import annotations

import concurrent.futures
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from onnx import helper

from app.config.model_options import read_options
from plugins.triton.tests.folders import tensors, write_config, write_onnx
from tests.app.served import Serve, ServedGateway

START = "control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }"
END = "control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] }"
CONTROLS = f"""
    control_input {{ name: "START" {START} }}
    control_input {{ name: "END" {END} }}
"""
STATE = 'input_name: "INPUT_STATE" output_name: "OUTPUT_STATE" data_type: TYPE_INT32'
ZEROS = "initial_state { dims: 1 zero_data: true }"
#: Longer than any test.
LONG = "max_sequence_idle_microseconds: 600000000"


def accumulate(root: Path, name: str, sequences: str, *, batch: int = 8) -> None:
    """OUTPUT is the sum of the inputs of a sequence, kept in an implicit state."""
    shape = [None, 1] if batch else [1]
    ins = ("INPUT", "START", "END", "INPUT_STATE")
    write_onnx(
        root,
        name,
        [
            helper.make_node("Add", ["INPUT", "INPUT_STATE"], ["OUTPUT"]),
            helper.make_node("Add", ["INPUT", "INPUT_STATE"], ["sum"]),
            helper.make_node("Mul", ["START", "END"], ["both"]),
            helper.make_node("Sub", ["sum", "both"], ["once"]),
            helper.make_node("Add", ["once", "both"], ["OUTPUT_STATE"]),
        ],
        [(n, "INT32", shape) for n in ins],
        [(n, "INT32", shape) for n in ("OUTPUT", "OUTPUT_STATE")],
    )
    tensor = ("INT32", "1")
    write_config(
        root,
        name,
        f"""
        platform: "onnxruntime_onnx" max_batch_size: {batch}
        {tensors("input", {"INPUT": tensor})}
        {tensors("output", {"OUTPUT": tensor})}
        sequence_batching {{ {LONG} {CONTROLS} {sequences} }}
        """,
    )


def _fill(root: Path) -> None:
    zeros = f"state {{ {STATE} dims: 1 initial_state {{ dims: 1 zero_data: true "
    zeros += 'data_type: TYPE_INT32 name: "zeros" } }'
    from_file = f"state {{ {STATE} dims: 1 initial_state {{ dims: 1 "
    from_file += 'data_type: TYPE_INT32 data_file: "first" name: "file" } }'
    plain = f"state {{ {STATE} dims: [ 1 ] }}"
    free = f"state {{ {STATE} dims: [ -1 ] }}"
    accumulate(root, "zeros", zeros)
    accumulate(root, "plain", f"direct {{ }} {plain}")
    accumulate(root, "free", free)
    accumulate(root, "flat", plain, batch=0)
    for name in ("from_file", "no_file", "short"):
        accumulate(root, name, from_file)
    for name in ("from_file", "short"):
        (root / name / "initial_state").mkdir()
        data = np.array([100], np.int32 if name == "from_file" else np.int16)
        (root / name / "initial_state" / "first").write_bytes(data.tobytes())
    accumulate(root, "wide", f"state {{ {STATE} dims: [ 3 ] }}")
    other = STATE.replace("INT32", "FP32")
    accumulate(root, "other_type", f"state {{ {other} dims: [ 1 ] }}")
    accumulate(root, "single", f"oldest {{ max_candidate_sequences: 1 }} {plain}")
    accumulate(root, "shown", plain)
    path = root / "shown" / "config.pbtxt"
    text = path.read_text()
    state = tensors("output", {"OUTPUT_STATE": ("INT32", "1")})
    path.write_text(text.replace("sequence_batching", f"{state} sequence_batching"))


@pytest.fixture(scope="module")
def served(serve: Serve) -> ServedGateway:
    return serve(_fill)


def ask(
    served: ServedGateway, name: str, who: int, x: int, flags: str = "", rows: int = 1
) -> httpx.Response:
    config = served.client.get(f"/v2/models/{name}/config").json()
    shape = [rows, 1] if config["max_batch_size"] else [1]
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": shape, "data": [x] * rows}
    parameters = {
        "sequence_id": who,
        "sequence_start": "s" in flags,
        "sequence_end": "e" in flags,
    }
    body = {"inputs": [tensor], "parameters": parameters}
    return served.client.post(f"/v2/models/{name}/infer", json=body)


def value(response: httpx.Response) -> int:
    assert response.status_code == 200, response.text
    outputs = {o["name"]: o["data"] for o in response.json()["outputs"]}
    return int(outputs["OUTPUT"][0])


@pytest.mark.parametrize(
    ("name", "first"),
    [("zeros", 0), ("plain", 0), ("free", 0), ("flat", 0), ("from_file", 100)],
)
def test_implicit_states(served: ServedGateway, name: str, first: int) -> None:
    found = [
        value(ask(served, name, 7, x, f)) for x, f in ((1, "s"), (2, ""), (3, "e"))
    ]
    assert found == [first + 1, first + 3, first + 6]


def test_a_request_has_one_row(served: ServedGateway) -> None:
    response = ask(served, "plain", 8, 1, "se", rows=2)
    assert response.status_code == 400
    assert "must specify batch-size 1 due to requirements" in response.text


def test_a_state_that_is_declared_as_an_output(served: ServedGateway) -> None:
    response = ask(served, "shown", 9, 4, "se")
    outputs = {o["name"]: o["data"] for o in response.json()["outputs"]}
    assert outputs == {"OUTPUT": [4], "OUTPUT_STATE": [4]}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_file", "the initial state 'first' cannot be read: No such file"),
        (
            "short",
            "first has 2 bytes, but the initial state of input 'INPUT_STATE' with",
        ),
        ("wide", "input 'INPUT_STATE' is declared with shape [-1, 3], but the model"),
        ("other_type", "input 'INPUT_STATE' is declared as FP32, but the model has"),
    ],
)
def test_states_that_cannot_be(served: ServedGateway, name: str, message: str) -> None:
    failed = served.client.get("/v1/health/ready").json()["failed"]
    assert message in failed[name]


def test_a_second_sequence_waits_for_the_slot(served: ServedGateway) -> None:
    assert value(ask(served, "single", 1, 1, "s")) == 1
    begun = threading.Event()

    def second() -> int:
        begun.set()
        return value(ask(served, "single", 2, 5, "se"))

    with concurrent.futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(second)
        begun.wait()
        assert value(ask(served, "single", 1, 2)) == 3
        assert not answer.done()
        assert value(ask(served, "single", 1, 3, "e")) == 6
        assert answer.result() == 5
    config = served.client.get("/v2/models/single/config").json()
    assert config["sequence_batching"]["oldest"] == {"max_candidate_sequences": 1}


def _options(tmp_path: Path, sequences: str) -> Any:
    path = tmp_path / "config.pbtxt"
    path.write_text(f"max_batch_size: 8 sequence_batching {{ {sequences} }}")
    return read_options("m", tmp_path, path, None)


def test_what_oldest_says_has_its_effect(tmp_path: Path) -> None:
    found = _options(
        tmp_path,
        "oldest { max_candidate_sequences: 4 preferred_batch_size: [ 4, 2 ] "
        "max_queue_delay_microseconds: 500 preserve_ordering: true }",
    )
    assert found.config.sequence.max_active == 4
    assert found.config.preferred_batch_sizes == (2, 4)
    assert found.config.max_queue_delay == 0.0005
    assert found.config.batching is True
    (note,) = found.notes
    assert "preserve_ordering has no effect" in note


def test_what_direct_says_is_noted(tmp_path: Path) -> None:
    found = _options(
        tmp_path,
        "direct { max_queue_delay_microseconds: 5 minimum_slot_utilization: 0.5 }",
    )
    assert [note.split(" has ")[0].split()[-1] for note in found.notes] == [
        "max_queue_delay_microseconds",
        "minimum_slot_utilization",
    ]


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        (
            f'{CONTROLS} control_input {{ name: "BEGIN" {START} }}',
            "'START' and 'BEGIN' are both the input for start",
        ),
        (
            f"state {{ {STATE} {ZEROS} {ZEROS} }}",
            "'INPUT_STATE' has several initial states",
        ),
        (
            f'state {{ {STATE} initial_state {{ dims: 1 data_file: "../x" }} }}',
            "data_file must be the name of a file",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, sequences: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        _options(tmp_path, sequences)
