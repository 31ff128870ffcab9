"""What is read from a folder, and what is refused.

Covers: plugins/text/src/popgate_text/folder.py,
plugins/text/src/popgate_text/config.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")

from app.errors import InvalidTensor
from plugins.text.tests.folders import (
    embedding_folder,
    write_config,
    write_modules,
    write_tokenizer,
)
from popgate_text.config import TextConfig
from popgate_text.folder import files_of, understand
from popgate_text.tokenizer import TextTokenizer

NEW = {"embedding_dimension": 16, "pooling_mode": "cls", "include_prompt": True}
OLD = {
    "pooling_mode_cls_token": True,
    "pooling_mode_mean_tokens": False,
    "pooling_mode_max_tokens": False,
}


@pytest.mark.parametrize(("pooling", "new"), [(NEW, True), (OLD, False)])
def test_both_spellings_say_the_same(tmp_path: Path, pooling: Any, new: bool) -> None:
    folder = embedding_folder(tmp_path / "m", pooling, new=new)
    model = understand(folder, TextConfig())
    assert (model.kind, model.pooling, model.normalize) == ("embedding", ("cls",), True)
    assert model.max_length == 64


def test_several_modes_are_joined_in_the_order_of_the_library(tmp_path: Path) -> None:
    both = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}
    folder = embedding_folder(tmp_path / "m", both)
    assert understand(folder, TextConfig()).pooling == ("cls", "mean")


@pytest.mark.parametrize(
    ("pooling", "why"),
    [
        ({"pooling_mode": "median"}, "pooling_mode is 'median'"),
        ({"pooling_mode_median_tokens": True}, "pooling_mode_median_tokens is not"),
        ({"word_embedding_dimension": 16}, "has neither pooling_mode nor"),
        ({"pooling_mode": "cls", **OLD, "pooling_mode_cls_token": False,
          "pooling_mode_mean_tokens": True}, "select ['mean']"),
        ({"pooling_mode": "mean", "include_prompt": False}, "include_prompt"),
    ],
)  # fmt: skip
def test_pooling_is_never_guessed(tmp_path: Path, pooling: Any, why: str) -> None:
    folder = embedding_folder(tmp_path / "m", pooling)
    with pytest.raises(ValueError, match=r"1_Pooling/config\.json") as refused:
        understand(folder, TextConfig())
    assert why in str(refused.value)


def test_unknown_modules_are_refused(tmp_path: Path) -> None:
    folder = embedding_folder(tmp_path / "m")
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["type"] = "sentence_transformers.models.LSTM"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match="module 2 is a LSTM"):
        understand(folder, TextConfig())
    modules[2]["path"] = "../other"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match="is outside the folder"):
        understand(folder, TextConfig())


def test_lengths_are_the_smallest_that_is_sane(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, model_max_length=1e30)
    write_modules(tmp_path, "Pooling")
    write_config(tmp_path, model_type="roberta", max_position_embeddings=514,
                 pad_token_id=1)  # fmt: skip
    assert understand(tmp_path, TextConfig()).max_length == 512
    (tmp_path / "a-link").symlink_to(tmp_path / "gone")
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 128}')
    assert understand(tmp_path, TextConfig()).max_length == 128
    assert understand(tmp_path, TextConfig(max_length=32)).max_length == 32


def test_the_kind_is_that_of_the_architecture(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    name = ["RobertaForSequenceClassification"]
    for labels, kind in (
        ({"0": "x"}, "reranker"),
        ({"0": "a", "1": "b"}, "classifier"),
    ):
        write_config(tmp_path, architectures=name, id2label=labels)
        model = understand(tmp_path, TextConfig())
        assert (model.kind, len(model.labels)) == (kind, len(labels))


@pytest.mark.parametrize(
    ("config", "types"),
    [
        ({}, True),
        ({"tokenizer_class": "BertTokenizer"}, True),
        ({"tokenizer_class": "TokenizersBackend"}, False),
        ({"model_input_names": ["input_ids", "attention_mask"]}, False),
        ({"tokenizer_class": "TokenizersBackend",
          "model_input_names": ["input_ids", "token_type_ids"]}, True),
    ],
)  # fmt: skip
def test_the_second_text_of_a_pair_has_the_type_that_the_tokenizer_gives(
    tmp_path: Path, config: dict[str, Any], types: bool
) -> None:
    write_tokenizer(tmp_path, **config)
    write_config(tmp_path)
    model = understand(tmp_path, TextConfig())
    assert model.types is types
    ((row,),) = TextTokenizer(tmp_path, model).encode(["a cat"], ["dog"])
    assert list(row.types) == [0, 0, 0, 0, types, types]


def test_half_of_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    write_config(tmp_path)
    tokenizer = TextTokenizer(tmp_path, understand(tmp_path, TextConfig()))
    for texts, pairs in ((["a", "cat \ud800"], None), (["a"], ["\udfff"])):
        with pytest.raises(InvalidTensor, match="lone surrogate"):
            [*tokenizer.encode(texts, pairs)]


def test_a_tokenizer_whose_inputs_are_no_list_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, model_input_names="input_ids")
    write_config(tmp_path)
    with pytest.raises(ValueError, match="model_input_names is not a list"):
        understand(tmp_path, TextConfig())


def test_a_prompt_must_be_one_of_the_folder(tmp_path: Path) -> None:
    folder = embedding_folder(tmp_path / "m")
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps({"prompts": {"query": "q: "}}))
    assert understand(folder, TextConfig(prompt="query")).default_prompt == "query"
    with pytest.raises(ValueError, match=r"prompt is 'passage'; the prompts are"):
        understand(folder, TextConfig(prompt="passage"))


def test_only_folders_with_a_tokenizer_are_text_models(tmp_path: Path) -> None:
    folder = embedding_folder(tmp_path / "m")
    assert files_of(folder, TextConfig())[0] == folder / "onnx" / "model.onnx"
    assert files_of(folder, TextConfig(file="onnx/model_O2.onnx")) == ()
    (folder / "tokenizer.json").unlink()
    assert files_of(folder, TextConfig()) == ()
