"""Folders of small text models with random weights, as their tools would write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save_model
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = (
    *("the", "a", "of", "to", "in", "model", "models", "server", "batch", "request"),
    *("answer", "cat", "dog", "runs", "sits", "on", "mat", "vector", "text", "token"),
    *("fast", "slow", "device", "queue", "key", "error", "what", "is", "how", "do"),
    *("i", "serve", "it"),
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
HIDDEN = 16
#: Classes of sentence-transformers before and since 5.4.
OLD = "sentence_transformers.models."
NEW = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
}


def write_tokenizer(folder: Path, **config: Any) -> Tokenizer:
    """Write tokenizer.json: words, and [CLS] and [SEP] around them."""
    names = [*SPECIAL, *WORDS]
    vocabulary = {name: n for n, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"pad_token": "[PAD]", "model_max_length": 64, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer


class Encoder:
    """Builds a transformer of one layer and one head; `head` classes, or none."""

    def __init__(self, seed: int = 0, positions: int = 64, offset: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.positions = positions
        self.offset = offset

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.random.normal(0, 0.5, shape).astype(np.float32))

    def build(
        self,
        *,
        inputs: Sequence[str] = ("input_ids", "attention_mask", "token_type_ids"),
        head: int = 0,
        output: str = "last_hidden_state",
        opset: int = 17,
    ) -> Any:
        size = len(SPECIAL) + len(WORDS)
        hidden = self.node("Gather", self.weight(size, HIDDEN), "input_ids")
        if "token_type_ids" in inputs:
            kinds = self.node("Gather", self.weight(2, HIDDEN), "token_type_ids")
            hidden = self.node("Add", hidden, kinds)
        table = self.weight(self.positions + self.offset, HIDDEN)
        if "position_ids" in inputs:
            places = self.node("Gather", table, "position_ids")
        else:
            ones = self.node("Clip", "attention_mask", *map(self.constant, (
                np.int64(1), np.int64(1))))  # fmt: skip
            counted = self.node("CumSum", ones, self.constant(np.int64(1)))
            shift = self.constant(np.int64(self.offset - 1))
            places = self.node("Gather", table, self.node("Add", counted, shift))
        hidden = self.node("Add", hidden, places)
        query, key, value = (
            self.node("MatMul", hidden, self.weight(HIDDEN, HIDDEN)) for _ in range(3)
        )
        scores = self.node("MatMul", query, self.node("Transpose", key, perm=[0, 2, 1]))
        mask = self.node("Cast", "attention_mask", to=TensorProto.FLOAT)
        mask = self.node("Unsqueeze", mask, self.constant(np.array([1], np.int64)))
        away = self.node("Mul", self.node("Sub", self.constant(np.float32(1)), mask),
                         self.constant(np.float32(-1e9)))  # fmt: skip
        share = self.node("Softmax", self.node("Add", scores, away), axis=-1)
        hidden = self.node("Add", hidden, self.node("MatMul", share, value))
        hidden = self.node("Tanh", hidden)
        shape: list[Any] = ["batch", "sequence", HIDDEN]
        if head and output == "logits":
            first = self.node("Gather", hidden, self.constant(np.int64(0)), axis=1)
            hidden = self.node("MatMul", first, self.weight(HIDDEN, head))
            shape = ["batch", head]
        elif head:
            hidden = self.node("MatMul", hidden, self.weight(HIDDEN, head))
            shape, output = ["batch", "sequence", head], "logits"
        self.nodes.append(helper.make_node("Identity", [hidden], [output]))
        graph = helper.make_graph(
            self.nodes,
            "encoder",
            [
                helper.make_tensor_value_info(
                    n, TensorProto.INT64, ["batch", "sequence"]
                )
                for n in inputs
            ],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
            self.weights,
        )
        imports = [helper.make_opsetid("", opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)


def write_config(folder: Path, **config: Any) -> None:
    base = {"model_type": "bert", "max_position_embeddings": 64, "hidden_size": HIDDEN}
    (folder / "config.json").write_text(json.dumps({**base, **config}))


def write_modules(
    folder: Path,
    *names: str,
    pooling: Mapping[str, Any] | None = None,
    new: bool = True,
) -> None:
    """Write modules.json and the folders of the modules behind the transformer."""
    modules = []
    for n, name in enumerate(("Transformer", *names)):
        path = "" if n == 0 else f"{n}_{name}"
        kind = NEW[name] if new else OLD + name
        modules.append({"idx": n, "name": str(n), "path": path, "type": kind})
        if path:
            (folder / path).mkdir(exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(modules))
    if "Pooling" in names:
        text = json.dumps(pooling or {"pooling_mode": "mean"})
        (folder / "1_Pooling" / "config.json").write_text(text)


def embedding_folder(
    folder: Path,
    pooling: Mapping[str, Any] | None = None,
    *,
    names: Sequence[str] = ("Pooling", "Normalize"),
    new: bool = True,
    seed: int = 0,
    onnx: str = "onnx/model.onnx",
    **build: Any,
) -> Path:
    """Write a folder as sentence-transformers does."""
    write_tokenizer(folder)
    write_config(folder)
    write_modules(folder, *names, pooling=pooling, new=new)
    (folder / onnx).parent.mkdir(exist_ok=True)
    save_model(Encoder(seed).build(**build), folder / onnx)
    return folder


def classifier_folder(folder: Path, labels: Sequence[str], seed: int = 0) -> Path:
    """Write a folder of a classifier; with one label it is a reranker."""
    write_tokenizer(folder)
    write_config(
        folder,
        architectures=["BertForSequenceClassification"],
        id2label={str(n): label for n, label in enumerate(labels)},
    )
    model = Encoder(seed).build(head=len(labels), output="logits")
    save_model(model, folder / "model.onnx")
    return folder


def splade_folder(folder: Path, seed: int = 0) -> Path:
    """Write a folder of a sparse encoder as sentence-transformers does."""
    write_tokenizer(folder)
    write_config(folder, architectures=["BertForMaskedLM"])
    kinds = ("MLMTransformer", "SpladePooling")
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "",
         "type": f"sentence_transformers.sparse_encoder.models.{kind}"}
        for n, kind in enumerate(kinds)
    ]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    model = Encoder(seed).build(head=len(SPECIAL) + len(WORDS), output="words")
    save_model(model, folder / "model.onnx")
    return folder
