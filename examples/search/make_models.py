"""Make two small text models of Markdown files: an encoder, and a reranker.

    python examples/search/make_models.py docs models

Words that stand near the same words get near vectors: a tokenizer is trained on the
text, the counts of neighbours (PPMI) are factorised, and frequent tokens weigh less
(SIF). Nothing is downloaded, and it takes some seconds. The encoder is the mean of its
tokens' vectors. The reranker compares each token of the query with the nearest token of
the document. Both are folders as sentence-transformers and transformers write them.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save_model
from tokenizers import (
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

WIDTH, WORDS, LENGTH, NEAR = 96, 4000, 256, 6
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
Array = np.ndarray[Any, Any]


def paragraphs(folder: Path) -> list[str]:
    """Return the paragraphs of all Markdown files below a folder."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.md"))]
    return [
        part for text in texts for part in re.split(r"\n\s*\n", text) if part.strip()
    ]


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Return a WordPiece tokenizer of lower-case words."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=WORDS, special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def token_vectors(texts: list[str], tokenizer: Tokenizer) -> tuple[Array, Array]:
    """Return a vector of length 1 and a weight for each token of the vocabulary."""
    size = tokenizer.get_vocab_size()
    counts = np.zeros((size, size), np.float32)
    often = np.zeros(size)
    for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
        ids = np.array(encoding.ids, np.int64)
        np.add.at(often, ids, 1)
        for apart in range(1, min(NEAR, len(ids) - 1) + 1):
            np.add.at(counts, (ids[:-apart], ids[apart:]), 1 / apart)
    counts += counts.T
    total, sums = counts.sum(), counts.sum(1)
    # A neighbour counts as far as it comes oftener than by chance.
    expected = np.outer(sums, sums**0.75) / (sums**0.75).sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        ppmi = np.nan_to_num(np.log(counts / expected), neginf=0, posinf=0)
    ppmi = np.maximum(ppmi, 0)
    random = np.random.default_rng(0).normal(size=(size, WIDTH + 16)).astype(np.float32)
    for _ in range(5):
        random, _ = np.linalg.qr(ppmi @ (ppmi.T @ random))
    left, values, _ = np.linalg.svd(random.T @ ppmi, full_matrices=False)
    vectors = (random @ left[:, :WIDTH]) * np.sqrt(values[:WIDTH])
    # A word is also itself, whatever stands beside it.
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
    own = np.random.default_rng(1).normal(size=vectors.shape) / np.sqrt(WIDTH)
    vectors = vectors + 0.5 * own
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    weights = 1e-3 / (1e-3 + often / max(1.0, often.sum()))
    weights[: len(SPECIAL)] = 0
    assert total > 0, "there is no text"
    return vectors.astype(np.float32), weights.astype(np.float32)


def _model(inputs: list[str], nodes: list[Any], weights: dict[str, Array], output: str,
           shape: list[Any]) -> Any:  # fmt: skip
    tokens = ["batch", "sequence"]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "search",
        [info(name, TensorProto.INT64, tokens) for name in inputs],
        [info(output, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def encoder(vectors: Array, weights: Array) -> Any:
    """Return the graph of weighted token vectors, without what all texts share."""
    table = vectors * weights[:, None]
    _, _, axes = np.linalg.svd(table, full_matrices=False)
    table = table - (table @ axes[:1].T) @ axes[:1]
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])]
    shape = ["batch", "sequence", WIDTH]
    named = {"table": table.astype(np.float32)}
    inputs = ["input_ids", "attention_mask"]
    return _model(inputs, nodes, named, "last_hidden_state", shape)


def reranker(vectors: Array, weights: Array) -> Any:
    """Return the graph of the mean, over tokens of the query, of the nearest token of
    the document."""
    node = helper.make_node
    nodes = [
        node("Gather", ["vectors", "input_ids"], ["found"]),
        node("Gather", ["weights", "input_ids"], ["weight"]),
        node("Transpose", ["found"], ["turned"], perm=[0, 2, 1]),
        node("MatMul", ["found", "turned"], ["near"]),
        node("Cast", ["token_type_ids"], ["second"], to=TensorProto.FLOAT),
        node("Cast", ["attention_mask"], ["there"], to=TensorProto.FLOAT),
        node("Sign", ["weight"], ["word"]),
        # 1 for words of the document, 0 for all others, which are far away.
        node("Mul", ["second", "word"], ["document_words"]),
        node("Mul", ["document_words", "there"], ["document"]),
        node("Sub", ["one", "document"], ["not_document"]),
        node("Mul", ["not_document", "far"], ["distance"]),
        node("Unsqueeze", ["distance", "axis_1"], ["distances"]),
        node("Add", ["near", "distances"], ["only_document"]),
        node("ReduceMax", ["only_document"], ["best"], axes=[2], keepdims=0),
        node("Max", ["best", "least"], ["nearest"]),
        node("Sub", ["one", "second"], ["first"]),
        node("Mul", ["first", "there"], ["query"]),
        node("Mul", ["query", "weight"], ["counted"]),
        node("Mul", ["nearest", "counted"], ["parts"]),
        node("ReduceSum", ["parts", "axis_1"], ["sum"], keepdims=1),
        node("ReduceSum", ["counted", "axis_1"], ["whole"], keepdims=1),
        node("Add", ["whole", "small"], ["divisor"]),
        node("Div", ["sum", "divisor"], ["mean"]),
        node("Mul", ["mean", "steep"], ["scaled"]),
        node("Sub", ["scaled", "shift"], ["logits"]),
    ]
    constants: dict[str, Any] = {
        "vectors": vectors,
        "weights": weights,
        "one": np.float32(1),
        "far": np.float32(-1e4),
        "least": np.float32(-1),
        "small": np.float32(1e-6),
        "steep": np.float32(12),
        "shift": np.float32(6),
        "axis_1": np.array([1], np.int64),
    }
    named = {name: np.asarray(value) for name, value in constants.items()}
    inputs = ["input_ids", "attention_mask", "token_type_ids"]
    return _model(inputs, nodes, named, "logits", ["batch", 1])


def write(folder: Path, tokenizer: Tokenizer, model: Any, config: dict[str, Any],
          modules: list[str]) -> None:  # fmt: skip
    """Write a folder that says all about its model."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    documents: dict[str, Any] = {
        "config.json": {"model_type": "bert", "pad_token_id": 0, **config},
        "tokenizer_config.json": {"pad_token": "[PAD]", "model_max_length": LENGTH},
    }
    if modules:
        documents["modules.json"] = [
            {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "",
             "type": f"sentence_transformers.models.{kind}"}
            for n, kind in enumerate(modules)
        ]  # fmt: skip
        documents["1_Pooling/config.json"] = {"pooling_mode": "mean"}
        (folder / "1_Pooling").mkdir(exist_ok=True)
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document), encoding="utf-8")
    save_model(model, folder / "model.onnx")


def make(text: Path, target: Path) -> None:
    """Write the folders `encoder` and `reranker` below `target`."""
    texts = paragraphs(text)
    tokenizer = train_tokenizer(texts)
    vectors, weights = token_vectors(texts, tokenizer)
    kinds = ["Transformer", "Pooling", "Normalize"]
    write(target / "encoder", tokenizer, encoder(vectors, weights), {}, kinds)
    config = {
        "architectures": ["SearchForSequenceClassification"],
        "id2label": {"0": "relevance"},
    }
    write(target / "reranker", tokenizer, reranker(vectors, weights), config, [])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text", type=Path, help="a folder with Markdown files")
    parser.add_argument("models", type=Path, help="where the models are written")
    options = parser.parse_args()
    make(options.text, options.models)
