"""An encoder of texts of MiniLM's size with random weights, and texts for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save_model

LAYERS, WIDTH, HEADS, INNER = 6, 384, 12, 1536
POSITIONS, WORDS = 512, 2000
SHORTEST, LONGEST, MEDIAN, SPREAD = 4, 400, 50, 0.9
INPUTS = ("input_ids", "attention_mask")
#: The padding token, the unknown token, and the tokens around a text.
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def lengths(count: int, median: int = MEDIAN, spread: float = SPREAD) -> list[int]:
    """Return log-normal lengths in tokens."""
    random = np.random.default_rng(0)
    found = np.exp(random.normal(np.log(median), spread, count))
    return [int(length) for length in np.clip(found.round(), SHORTEST, LONGEST)]


def texts(count: int, median: int = MEDIAN, spread: float = SPREAD) -> list[str]:
    """Return texts of `lengths`."""
    random = np.random.default_rng(1)
    return [
        " ".join(f"w{n}" for n in random.integers(0, WORDS, length - 2))
        for length in lengths(count, median, spread)
    ]


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.random = np.random.default_rng(0)

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.random.normal(0, 0.05, shape).astype(np.float32))

    def linear(self, value: str, inputs: int, outputs: int) -> str:
        product = self.node("MatMul", value, self.weight(inputs, outputs))
        return self.node("Add", product, self.weight(outputs))

    def normalised(self, value: str) -> str:
        one = self.constant(np.ones(WIDTH, np.float32))
        return self.node("LayerNormalization", value, one, self.weight(WIDTH))


def encoder() -> Any:
    """Return the ONNX model: token ids and mask in, token vectors out."""
    graph = _Graph()
    node, constant = graph.node, graph.constant
    hidden = node("Gather", graph.weight(WORDS + len(SPECIAL), WIDTH), "input_ids")
    first = constant(np.array([1]))
    length = node("Slice", node("Shape", "input_ids"), first, constant(np.array([2])))
    start = constant(np.array([0]))
    places = node("Slice", graph.weight(POSITIONS, WIDTH), start, length)
    hidden = graph.normalised(node("Add", hidden, places))
    mask = node("Cast", "attention_mask", to=TensorProto.FLOAT)
    mask = node("Unsqueeze", mask, constant(np.array([1, 2])))
    off = node("Sub", constant(np.float32(1)), mask)
    off = node("Mul", off, constant(np.float32(-1e9)))
    apart = constant(np.array([0, 0, HEADS, WIDTH // HEADS]))
    joined = constant(np.array([0, 0, WIDTH]))
    scale = constant(np.float32((WIDTH // HEADS) ** -0.5))
    for _ in range(LAYERS):
        query, key, value = (
            node("Reshape", graph.linear(hidden, WIDTH, WIDTH), apart) for _ in range(3)
        )
        query = node("Transpose", query, perm=[0, 2, 1, 3])
        key = node("Transpose", key, perm=[0, 2, 3, 1])
        value = node("Transpose", value, perm=[0, 2, 1, 3])
        scores = node("Mul", node("MatMul", query, key), scale)
        share = node("Softmax", node("Add", scores, off), axis=-1)
        found = node("Transpose", node("MatMul", share, value), perm=[0, 2, 1, 3])
        found = graph.linear(node("Reshape", found, joined), WIDTH, WIDTH)
        hidden = graph.normalised(node("Add", hidden, found))
        inner = node("Relu", graph.linear(hidden, WIDTH, INNER))
        inner = graph.linear(inner, INNER, WIDTH)
        hidden = graph.normalised(node("Add", hidden, inner))
    graph.nodes.append(helper.make_node("Identity", [hidden], ["last_hidden_state"]))
    info = helper.make_tensor_value_info
    tokens = ["batch", "sequence"]
    made = helper.make_graph(
        graph.nodes,
        "encoder",
        [info(name, TensorProto.INT64, tokens) for name in INPUTS],
        [info("last_hidden_state", TensorProto.FLOAT, [*tokens, WIDTH])],
        graph.weights,
    )
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(made, opset_imports=imports, ir_version=8)


def write_encoder(folder: Path, config: str = "") -> None:
    """Write the folder of a text model; `config` is its ``config.toml``."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    version = folder / "1"
    (version / "1_Pooling").mkdir(parents=True)
    names = [*SPECIAL, *(f"w{n}" for n in range(WORDS))]
    words = models.WordLevel(
        {name: n for n, name in enumerate(names)}, unk_token="[UNK]"
    )
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(version / "tokenizer.json"))
    kinds = ("Transformer", "Pooling")
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": kind}
        for n, kind in enumerate(kinds)
    ]
    for name, document in {
        # PopGate does not read all of this, but Infinity loads the folder by
        # transformers.
        "config.json": {
            "model_type": "bert",
            "architectures": ["BertModel"],
            "pad_token_id": 0,
            "hidden_size": WIDTH,
            "num_hidden_layers": LAYERS,
            "vocab_size": len(names),
            "num_attention_heads": HEADS,
            "intermediate_size": INNER,
            "max_position_embeddings": POSITIONS,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": "[PAD]",
            "unk_token": "[UNK]",
            "cls_token": "[CLS]",
            "sep_token": "[SEP]",
            "model_max_length": POSITIONS,
        },
        "special_tokens_map.json": {
            "pad_token": "[PAD]",
            "unk_token": "[UNK]",
            "cls_token": "[CLS]",
            "sep_token": "[SEP]",
        },
        "modules.json": modules,
        "1_Pooling/config.json": {"pooling_mode": "mean"},
    }.items():
        (version / name).write_text(json.dumps(document))
    save_model(encoder(), version / "model.onnx")
    if config:
        (folder / "config.toml").write_text(config)
