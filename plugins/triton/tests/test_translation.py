"""What Triton's configuration means in our words.

Covers: app/config/model_options.py, plugins/triton/src/popgate_triton/configuration.py,
plugins/triton/src/popgate_triton/tensors.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.config.config_keys import ModelConfigError
from app.config.model_options import ModelOptions, read_options
from app.config.version_policy import VersionPolicy


def options(
    tmp_path: Path, text: str, toml: str | None = None, override: str | None = None
) -> ModelOptions:
    pbtxt = tmp_path / "config.pbtxt"
    pbtxt.write_text(text)
    ours = tmp_path / "config.toml"
    if toml is not None:
        ours.write_text(toml)
    found = ours if toml is not None else None
    return read_options("m", tmp_path, pbtxt, found, override)


def config(tmp_path: Path, text: str) -> Any:
    return options(tmp_path, text).config


def test_a_batched_model(tmp_path: Path) -> None:
    found = config(
        tmp_path,
        """
        name: "m" max_batch_size: 8
        instance_group [ { count: 2 }, { count: 1 passive: true } ]
        dynamic_batching {
          max_queue_delay_microseconds: 1500
          priority_levels: 3 default_priority_level: 2
          default_queue_policy { max_queue_size: 10
                                 default_timeout_microseconds: 2000000 }
          priority_queue_policy { key: 1 value { max_queue_size: 99999999 } }
        }
        """,
    )
    assert (found.batching, found.max_batch_size, found.max_request_rows) == (
        True,
        8,
        8,
    )
    assert (found.instances, found.max_queue_size, found.timeout) == (2, 10, 2.0)
    assert found.max_queue_delay == pytest.approx(0.0015)
    assert (found.priority_levels, found.default_priority) == (3, 2)
    assert [(p.level, p.max_queue_size) for p in found.priority] == [(1, 65536)]
    assert found.versions == VersionPolicy(latest=1)


def test_version_policies(tmp_path: Path) -> None:
    for text, policy in (
        ("all { }", VersionPolicy()),
        ("latest { num_versions: 2 }", VersionPolicy(latest=2)),
        ("latest { }", VersionPolicy(latest=1)),
        ("specific { versions: [ 1, 5 ] }", VersionPolicy(specific=(1, 5))),
    ):
        found = config(tmp_path, f"version_policy: {{ {text} }}")
        assert found.versions == policy


def test_instances_on_several_gpus(tmp_path: Path) -> None:
    found = options(tmp_path, "instance_group { count: 2 kind: KIND_GPU gpus: [0, 1] }")
    assert found.config.instances == 4
    counted, note = found.notes
    assert counted == (
        "config.pbtxt: instance_group gpus only count here: 4 instances in all"
    )
    assert note.startswith("config.pbtxt: instance_group kind has no effect here")


def test_what_has_no_effect_is_noted(tmp_path: Path) -> None:
    found = options(
        tmp_path,
        """
        optimization { graph { level: 1 } }
        parameters { key: "k" value { string_value: "v" } }
        response_cache { enable: true }
        model_transaction_policy { decoupled: true }
        dynamic_batching { preserve_ordering: true
                           default_queue_policy { timeout_action: DELAY } }
        input { name: "a" data_type: TYPE_FP32 dims: [ 3 ] optional: true }
        """,
    )
    text = "\n".join(found.notes)
    for word in (
        "optimization has no effect here",
        "parameters has no effect here",
        "the gateway does not cache responses",
        "for several responses, set [responses]",
        "preserve_ordering has no effect here",
        "timeout_action DELAY",
    ):
        assert word in text
    assert len(found.notes) == 6
    assert found.config.optional_inputs == ("a",)
    assert found.config.batching is False  # max_batch_size is 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name: "other"', "name is 'other', but the model is called 'm'"),
        ('platform: "tensorrt_plan"', "'tensorrt_plan' is not supported"),
        ('backend: "pytorch"', "'pytorch' is not supported"),
        ("max_batch_size: -1", "max_batch_size must be 0 or more"),
        ("instance_group { count: 2000 }", "expected 1 to 1024"),
        ("input { dims: [ 1 ] }", "lacks a name"),
        ('input { name: "a" dims: [ 0 ] }', "dims of 'a' must be 1 or more, or -1"),
        (
            'input { name: "a" dims: [ -1, -1 ] reshape { shape: [ -1 ] } }',
            "reshape of 'a' is impossible: [-1, -1] has more than one free dimension",
        ),
        ('input { name: "a" allow_ragged_batch: true }', "allow_ragged_batch"),
        ('batch_input { kind: BATCH_ELEMENT_COUNT target_name: "n" }', "batch_input"),
        (
            (
                'batch_output { target_name: "b" source_input: "a" '
                "kind: BATCH_SCATTER_WITH_INPUT_SHAPE }"
            ),
            "batch_output",
        ),
        ("dynamic_batching { priority_levels: 99 }", "priority_levels must be"),
        (
            (
                'sequence_batching { control_input { name: "S" control { '
                "int32_false_true: [ 1, 0 ] } } }"
            ),
            "int32_false_true of 'S' must be [0, 1]",
        ),
        (
            (
                'sequence_batching { state { input_name: "i" output_name: "o" '
                'initial_state { data_file: "f" } } }'
            ),
            "data_file requires shape",
        ),
    ],
)
def test_what_cannot_be_followed(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        options(tmp_path, text)
    assert str(caught.value).startswith("config.pbtxt: ")
    assert message in str(caught.value)


def test_sequences(tmp_path: Path) -> None:
    found = config(
        tmp_path,
        """
        sequence_batching {
          max_sequence_idle_microseconds: 5000000
          oldest { max_candidate_sequences: 4 }
          control_input [
            { name: "S" control { kind: CONTROL_SEQUENCE_START
                                  int32_false_true: [ 0, 1 ] } },
            { name: "E" control { kind: CONTROL_SEQUENCE_END } },
            { name: "R" control { kind: CONTROL_SEQUENCE_READY } },
            { name: "C" control { kind: CONTROL_SEQUENCE_CORRID
                                  data_type: TYPE_UINT64 } }
          ]
          state { input_name: "i" output_name: "o"
                  initial_state { zero_data: true dims: [ 2 ] name: "z" } }
        }
        """,
    ).sequence
    assert (found.start, found.end, found.ready, found.correlation_id) == tuple("SERC")
    assert (found.max_idle, found.max_active) == (5.0, 4)
    (state,) = found.state
    assert (state.input, state.output, state.shape) == ("i", "o", (2,))


def test_warmup(tmp_path: Path) -> None:
    found = config(
        tmp_path,
        """
        model_warmup [ { name: "w" batch_size: 4 inputs [
          { key: "a" value { dims: [ 3 ] zero_data: true } },
          { key: "b" value { dims: [ 3 ] random_data: true } },
          { key: "c" value { dims: [ 3 ] input_data_file: "c.raw" } } ] } ]
        """,
    ).warmup
    (sample,) = found.samples
    assert (sample.name, sample.batch_size, sample.count) == ("w", 4, 1)
    said = {name: (i.data, i.file) for name, i in sample.inputs.items()}
    assert said["a"] == ("zeros", "")
    assert said["b"] == ("random", "")
    assert said["c"][1] == "c.raw"


def test_labels(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    text = 'output { name: "y" dims: [ 2 ] label_filename: "labels.txt" }'
    assert config(tmp_path, text).labels == {"y": ("cat", "dog")}


def test_ours_goes_over_tritons_and_the_request_over_both(tmp_path: Path) -> None:
    text = "max_batch_size: 8 instance_group { count: 2 }"
    found = options(tmp_path, text, "instances = 3\ntimeout = 5").config
    assert (found.max_batch_size, found.instances, found.timeout) == (8, 3, 5.0)
    found = options(
        tmp_path,
        text,
        "instances = 3\ntimeout = 5",
        '{"max_batch_size": "4", "timeout": 7}',
    ).config
    assert (found.max_batch_size, found.instances, found.timeout) == (4, 3, 7.0)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('{"instences": 1}', "the config of the load request: unknown key 'instences'"),
        ('{"timeout": "x"}', "the config of the load request: timeout must be"),
        ('{"name": "n"}', "the model is called 'm'"),
        ("[]", "must be a JSON object"),
        ('{"default_priority": 3}', "default_priority is 3"),
    ],
)
def test_overrides_that_cannot_be_used(
    tmp_path: Path, override: str, message: str
) -> None:
    with pytest.raises(ModelConfigError) as caught:
        options(tmp_path, "", None, override)
    assert message in str(caught.value)
