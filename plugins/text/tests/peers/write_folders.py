"""Write folders of small models with sentence-transformers itself, and its vectors.

    python write_folders.py TOKENIZER.JSON FOLDER

Run by an interpreter that has torch and sentence-transformers (`make test-text`).
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from sentence_transformers import (
    CrossEncoder,
    SentenceTransformer,
    SparseEncoder,
    models,
)
from sentence_transformers.sparse_encoder.models import MLMTransformer, SpladePooling
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)

TEXTS = [
    "the cat sits on the mat",
    "a fast model",
    "dog",
    "what is a batch of text in a server queue",
    "how do i serve it " * 3,
]
SIZE = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 64,
}  # fmt: skip
SPECIAL = {
    "pad_token": "[PAD]", "unk_token": "[UNK]",
    "cls_token": "[CLS]", "sep_token": "[SEP]",
}  # fmt: skip


AXES = {0: "batch", 1: "tokens"}
QUERY = "the cat"
NAMES = ("input_ids", "attention_mask", "token_type_ids")


class TokenVectors(torch.nn.Module):
    def __init__(self, model, names):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values):
        return self.model(**dict(zip(self.names, values, strict=True)))[0]


def export(model, folder, names, output="last_hidden_state"):
    ids = torch.ones(2, 8, dtype=torch.long)
    example = {"input_ids": ids, "attention_mask": ids, "token_type_ids": ids * 0}
    target = folder / "onnx" / "model.onnx"
    target.parent.mkdir()
    pooled = isinstance(model, BertForSequenceClassification)
    torch.onnx.export(
        TokenVectors(model, names).eval(),
        tuple(example[name] for name in names),
        str(target),
        input_names=list(names),
        output_names=[output],
        dynamic_axes={
            name: {0: "batch"} if pooled and name == output else AXES
            for name in [*names, output]
        },
        opset_version=17,
        dynamo=False,
    )


def save_tokenizer(tokenizer, folder, **more):
    PreTrainedTokenizerFast(
        tokenizer_file=tokenizer, model_max_length=64, **SPECIAL, **more
    ).save_pretrained(folder)


def config(**more):
    return BertConfig(**SIZE, max_position_embeddings=64, **more)


def write(
    tokenizer,
    folder,
    pooling,
    *,
    kind="bert",
    dense=False,
    unit=False,
    side="right",
    old=False,
    **prompts,
):
    plain = folder / "_plain"
    plain.mkdir(parents=True)
    if kind == "bert":
        model, names = BertModel(config()), NAMES
    else:
        other = RobertaConfig(
            **SIZE, max_position_embeddings=66, pad_token_id=0, type_vocab_size=1
        )
        model, names = RobertaModel(other), ("input_ids", "attention_mask")
    model.eval().save_pretrained(plain)
    save_tokenizer(tokenizer, plain, padding_side=side)
    modules = [models.Transformer(str(plain)), models.Pooling(32, pooling_mode=pooling)]
    if dense:
        modules.append(models.Dense(32, 16))
    if unit:
        modules.append(models.Normalize())
    made = SentenceTransformer(modules=modules, device="cpu", **prompts)
    made.save(str(folder))
    shutil.rmtree(plain)
    export(model, folder, names)
    if old:
        spell_as_before(folder, pooling)
    # One by one: padding on the left moves the positions of this kind of model.
    return made.encode(TEXTS, batch_size=1 if side == "left" else 32).tolist()


def spell_as_before(folder, pooling):
    """Write the modules and the pooling as versions before 5.4 did."""
    path = folder / "modules.json"
    modules = json.loads(path.read_text())
    for one in modules:
        kind = one["type"].rpartition(".")[2]
        one["type"] = f"sentence_transformers.models.{kind}"
    path.write_text(json.dumps(modules))
    keys = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens",
            "weightedmean_tokens", "lasttoken")  # fmt: skip
    chosen = {"cls": "cls_token", "mean": "mean_tokens"}[pooling]
    document = {f"pooling_mode_{key}": key == chosen for key in keys}
    document |= {"word_embedding_dimension": 32, "include_prompt": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(document))


def write_pairs(tokenizer, folder, labels, **more):
    """Write a model that compares texts; returns its scores of `QUERY` and each."""
    model = BertForSequenceClassification(config(num_labels=labels)).eval()
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder, **more)
    made = CrossEncoder(str(folder), device="cpu")
    pairs = [(QUERY, text) for text in TEXTS]
    export(model, folder, NAMES, "logits")
    return made.predict(pairs, apply_softmax=labels > 1).tolist()


def write_sparse(tokenizer, folder):
    """Write a SPLADE model; returns the weights of all words for each text."""
    plain = folder / "_plain"
    plain.mkdir(parents=True)
    model = BertForMaskedLM(config(architectures=["BertForMaskedLM"])).eval()
    model.save_pretrained(plain)
    save_tokenizer(tokenizer, plain)
    modules = [MLMTransformer(str(plain)), SpladePooling("max")]
    made = SparseEncoder(modules=modules, device="cpu")
    made.save(str(folder))
    shutil.rmtree(plain)
    export(model, folder, NAMES, "logits")
    return made.encode(TEXTS, convert_to_sparse_tensor=False).tolist()


def main(tokenizer, root):
    torch.manual_seed(0)
    modes = (
        "cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken",
    )  # fmt: skip
    kinds = {mode: {"pooling": mode} for mode in modes}
    kinds |= {
        "unit": {"pooling": "mean", "unit": True},
        "dense": {"pooling": "mean", "dense": True},
        "dense_unit": {"pooling": "cls", "dense": True, "unit": True},
        "roberta": {"pooling": "mean", "kind": "roberta"},
        "left": {"pooling": "lasttoken", "side": "left"},
        "old_cls": {"pooling": "cls", "old": True},
        "old_mean": {"pooling": "mean", "unit": True, "old": True},
        "prompts": {
            "pooling": "mean",
            "prompts": {"query": "the model ", "passage": "a "},
            "default_prompt_name": "query",
        },
    }
    vectors = {
        name: write(tokenizer, Path(root) / name, **options)
        for name, options in kinds.items()
    }
    found = {
        "texts": TEXTS,
        "vectors": vectors,
        "query": QUERY,
        "scores": write_pairs(tokenizer, Path(root) / "reranker", 1),
        "typed": write_pairs(
            tokenizer, Path(root) / "typed", 1, model_input_names=list(NAMES)
        ),
        "classes": write_pairs(tokenizer, Path(root) / "classifier", 3),
        "sparse": write_sparse(tokenizer, Path(root) / "splade"),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
