"""Write folders of small models with sentence-transformers itself, and its vectors.

    python write_folders.py TOKENIZER.JSON FOLDER

Run by an interpreter that has torch and sentence-transformers (`make test-text`).
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer, models
from transformers import (
    BertConfig,
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


class TokenVectors(torch.nn.Module):
    def __init__(self, model, names):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values):
        return self.model(**dict(zip(self.names, values, strict=True)))[0]


def export(model, folder, names):
    ids = torch.ones(2, 8, dtype=torch.long)
    example = {"input_ids": ids, "attention_mask": ids, "token_type_ids": ids * 0}
    target = folder / "onnx" / "model.onnx"
    target.parent.mkdir()
    output = "last_hidden_state"
    torch.onnx.export(
        TokenVectors(model, names).eval(),
        tuple(example[name] for name in names),
        str(target),
        input_names=list(names),
        output_names=[output],
        dynamic_axes={name: {0: "batch", 1: "tokens"} for name in [*names, output]},
        opset_version=17,
        dynamo=False,
    )


def write(
    tokenizer, folder, pooling, *, kind="bert", dense=False, unit=False, **prompts
):
    plain = folder / "_plain"
    plain.mkdir(parents=True)
    if kind == "bert":
        model = BertModel(BertConfig(**SIZE, max_position_embeddings=64))
        names = ("input_ids", "attention_mask", "token_type_ids")
    else:
        config = RobertaConfig(
            **SIZE, max_position_embeddings=66, pad_token_id=0, type_vocab_size=1
        )
        model, names = RobertaModel(config), ("input_ids", "attention_mask")
    model.eval().save_pretrained(plain)
    PreTrainedTokenizerFast(
        tokenizer_file=tokenizer, model_max_length=64, **SPECIAL
    ).save_pretrained(plain)
    modules = [models.Transformer(str(plain)), models.Pooling(32, pooling_mode=pooling)]
    if dense:
        modules.append(models.Dense(32, 16))
    if unit:
        modules.append(models.Normalize())
    made = SentenceTransformer(modules=modules, device="cpu", **prompts)
    made.save(str(folder))
    shutil.rmtree(plain)
    export(model, folder, names)
    return made.encode(TEXTS).tolist()


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
    print(json.dumps({"texts": TEXTS, "vectors": vectors}))


if __name__ == "__main__":
    main(*sys.argv[1:])
