"""What is a configuration of Triton's, and what is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.config.config_keys import ModelConfigError
from popgate_triton.reading import parse_document, read_pbtxt


def pbtxt(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.pbtxt"
    path.write_text(text)
    return path


def test_every_part_of_a_configuration_is_known(tmp_path: Path) -> None:
    message = read_pbtxt(
        pbtxt(
            tmp_path,
            """
            # as Triton's documentation has them
            name: "m"
            platform: "onnxruntime_onnx"
            backend: "onnxruntime"
            max_batch_size: 8
            input [
              { name: "a" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, -1 ]
                optional: false },
              { name: "b", data_type: TYPE_STRING, dims: 1, reshape { shape: [ ] } }
            ]
            output { name: "c" data_type: TYPE_INT64 dims: [ 1 ]
                     label_filename: "labels.txt" }
            batch_input [ { kind: BATCH_ELEMENT_COUNT target_name: "x"
                            data_type: TYPE_FP32 source_input: "a" } ]
            batch_output [ { target_name: "c" kind: BATCH_SCATTER_WITH_INPUT_SHAPE
                             source_input: "a" } ]
            version_policy: { specific: { versions: [ 1, 3 ] } }
            instance_group [
              { name: "g" count: 2 kind: KIND_GPU gpus: [ 0, 1 ] host_policy: "p"
                rate_limiter { resources [ { name: "R1" count: 4 global: true } ]
                               priority: 2 } },
              { kind: KIND_CPU passive: true profile: "x" }
            ]
            dynamic_batching {
              preferred_batch_size: [ 4, 8 ]
              max_queue_delay_microseconds: 100
              preserve_ordering: true
              priority_levels: 2
              default_priority_level: 2
              default_queue_policy { timeout_action: DELAY
                default_timeout_microseconds: 5 allow_timeout_override: true
                max_queue_size: 10 }
              priority_queue_policy { key: 1 value { max_queue_size: 3 } }
            }
            optimization {
              graph { level: 1 } priority: PRIORITY_MAX
              cuda { graphs: true graph_spec { batch_size: 1
                input { key: "a" value { dim: [ 3 ] } } } }
              execution_accelerators { gpu_execution_accelerator : [ {
                name : "tensorrt" parameters { key: "precision_mode" value: "FP16" }
              } ] }
              input_pinned_memory { enable: false }
              eager_batching: true
            }
            parameters { key: "k" value { string_value: "v" } }
            model_warmup [ { name: "w" batch_size: 4 count: 2
              inputs { key: "a" value { data_type: TYPE_FP32 dims: [ 3, 2 ]
                                        zero_data: true } } } ]
            model_transaction_policy { decoupled: false }
            model_repository_agents { agents [ { name: "x" } ] }
            response_cache { enable: true }
            model_metrics { metric_control { metric_identifier { family: "f" }
              histogram_options { buckets: [ 1, 2 ] } } }
            default_model_filename: "n.onnx"
            cc_model_filenames { key: "7.5" value: "o.onnx" }
            metric_tags { key: "t" value: "u" }
            model_operations { op_library_filename: "l.so" }
            """,
        )
    )
    assert message.input[1].reshape.shape == []
    assert message.dynamic_batching.priority_queue_policy[1].max_queue_size == 3
    assert len(message.ListFields()) == len(message.DESCRIPTOR.fields) - 3


def test_sequences_and_ensembles_are_known(tmp_path: Path) -> None:
    sequences = read_pbtxt(
        pbtxt(
            tmp_path,
            """
            sequence_batching {
              max_sequence_idle_microseconds: 5000000
              direct { max_queue_delay_microseconds: 1 minimum_slot_utilization: 0.5 }
              control_input [ { name: "START" control [ {
                kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] } ]
              state [ { input_name: "i" output_name: "o" data_type: TYPE_INT32
                dims: [ -1 ] initial_state: { data_type: TYPE_INT32 dims: [ 1 ]
                zero_data: true name: "s" } } ]
              iterative_sequence: true
            }
            """,
        )
    )
    assert sequences.sequence_batching.WhichOneof("strategy") == "direct"
    ensemble = read_pbtxt(
        pbtxt(
            tmp_path,
            """
            platform: "ensemble"
            ensemble_scheduling { step [ { model_name: "a" model_version: -1
              input_map { key: "x" value: "y" } } ] }
            """,
        )
    )
    assert dict(ensemble.ensemble_scheduling.step[0].input_map) == {"x": "y"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_batchsize: 3", "unknown field 'max_batchsize' in ModelConfig (line 1,"),
        ("\n\ninput { size: 3 }", "unknown field 'size' in Input (line 3, column 9)"),
        ("input {", 'Expected "}"'),
        ("name: 3", "Expected string"),
        ("max_batch_size: 99999999999", "Value out of range"),
        ("input { data_type: TYPE_COMPLEX }", "has no value named TYPE_COMPLEX"),
        ("dynamic_batching {} sequence_batching {}", "is specified along with field"),
        ("optimization {" * 100_00, "unknown field 'optimization'"),
        ("\x00\x01", "config.pbtxt"),
        ('name: "' + "x" * (1 << 20) + '"', "is larger than"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        read_pbtxt(pbtxt(tmp_path, text))
    assert str(caught.value).startswith("config.pbtxt")
    assert message in str(caught.value)
    assert "triton." not in str(caught.value)


def test_what_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ModelConfigError, match="cannot be read"):
        read_pbtxt(path)
    with pytest.raises(ModelConfigError, match="cannot be read"):
        read_pbtxt(tmp_path / "none")


def test_json_has_numbers_as_numbers_or_text() -> None:
    message, ours = parse_document(
        {
            "max_batch_size": "16",
            "input": [{"name": "a", "data_type": "TYPE_FP32", "dims": ["-1", 3]}],
            "dynamic_batching": {"max_queue_delay_microseconds": "100"},
            "parameters": {"k": {"string_value": "v"}},
            "instances": 2,
        }
    )
    assert message.max_batch_size == 16
    assert list(message.input[0].dims) == [-1, 3]
    assert ours == {"instances": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"max_batch_size": "many"}', "max_batch_size"),
        ('{"input": [{"size": 3}]}', "size"),
        ('{"input": ' + "[" * 500 + "]" * 500 + "}", "the config"),
    ],
)
def test_json_that_is_none(text: str, message: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        parse_document(json.loads(text))
    assert message in str(caught.value)
