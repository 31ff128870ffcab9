"""Content of a text model's folder: kind, pooling, prompts, lengths.

It reads the files that sentence-transformers and transformers write, in the spelling of
sentence-transformers before and since 5.4. Unknown or contradictory settings are
refused with the file and the key, never guessed: a wrong pooling gives vectors that
look right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import orjson

from popgate_text.config import POOLING_MODES, TextConfig

#: ONNX files of the model; the first existing one is used.
ONNX_FILES: Final = ("model.onnx", "onnx/model.onnx")
TOKENIZER: Final = "tokenizer.json"
#: Files of the model besides ONNX; if one changes, it is another model.
READ: Final = (
    TOKENIZER, "config.json", "modules.json", "config_sentence_transformers.json",
    "sentence_bert_config.json", "sentence_roberta_config.json",
    "sentence_distilbert_config.json", "sentence_mpnet_config.json",
    "sentence_xlm-roberta_config.json", "sentence_xlnet_config.json",
    "sentence_camembert_config.json", "sentence_albert_config.json",
    "tokenizer_config.json", "special_tokens_map.json",
)  # fmt: skip
MAX_JSON: Final = 16 << 20
#: The output of embedding models with a vector for each token.
TOKENS: Final = "tokens"
#: Lengths beyond this mean "no limit" (transformers writes 1e30).
_NO_LENGTH: Final = 1 << 20
#: Spellings of the modes before sentence-transformers 5.4.
_OLD_MODES: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
#: Models whose positions begin behind the padding token's id.
_OFFSET_TYPES: Final = frozenset(
    {"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "longformer"}
    | {"roberta-prelayernorm", "data2vec-text", "xlm-prophetnet", "ibert"}
)
_ACTIVATIONS: Final = frozenset({"Tanh", "Identity", "ReLU", "GELU", "Sigmoid", "SiLU"})


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer after the pooling: the file with its weights, and its
    activation.
    """

    file: str
    digest: str
    activation: str


@dataclass(frozen=True, slots=True)
class TextModel:
    """Description of a text model from its folder.

    `pooling` is empty if the ONNX file must return whole vectors. `max_length` is in
    tokens, including special ones. `offset` is the first position of models that count
    from behind the padding token. `labels` are those of a classifier. Without `types`
    the second text of a pair has token type 0, like the first one.
    """

    kind: str
    pooling: tuple[str, ...] = ()
    normalize: bool = False
    dense: tuple[Dense, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    max_length: int = 512
    lower_case: bool = False
    pad_token: str = ""
    offset: int = 0
    labels: tuple[str, ...] = ()
    sigmoid: bool = False
    model_type: str = ""
    types: bool = True

    def to_message(self) -> dict[str, Any]:
        """Return the fields, as msgpack can hold them."""
        return {**asdict(self), "prompts": dict(self.prompts)}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> TextModel:
        return cls(
            **{
                **message,
                "pooling": tuple(message["pooling"]),
                "dense": tuple(Dense(**one) for one in message["dense"]),
                "labels": tuple(message["labels"]),
            }
        )

    def recipe(self) -> dict[str, Any]:
        """Return the values that the conversion of the graph depends on."""
        return {
            "kind": self.kind,
            "pooling": list(self.pooling),
            "normalize": self.normalize,
            "dense": [asdict(one) for one in self.dense],
            "sigmoid": self.sigmoid,
            "tokens": TOKENS,
        }


def files_of(folder: Path, options: TextConfig) -> tuple[Path, ...]:
    """Return the files of a text model, the ONNX file first; empty if the folder is not
    one.

    Raises OSError.
    """
    if not (folder / TOKENIZER).is_file():
        return ()
    wanted = (options.file,) if options.file else ONNX_FILES
    found = [folder / name for name in wanted if (folder / name).is_file()]
    if not found:
        return ()
    read = [folder / name for name in READ if (folder / name).is_file()]
    inner = sorted(
        path
        for pattern in ("[0-9]*_*/config.json", "[0-9]*_*/model.safetensors")
        for path in folder.glob(pattern)
    )
    return (found[0], *read, *inner)


def root_of(files: Sequence[Path]) -> Path:
    """Return the folder that these files of a model lie in."""
    return next(path.parent for path in files if path.name == TOKENIZER)


def other_weights(folder: Path, taken: Path) -> list[str]:
    """Return the other ONNX files of a folder, as `[text] file` names them."""
    found = [*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")]
    return sorted(str(p.relative_to(folder)) for p in found if p != taken)


def understand(folder: Path, options: TextConfig) -> TextModel:
    """Return the description in a folder; `options` override it.

    Raises ValueError, OSError.

    One load calls this several times; the files are read again only if one has changed.
    """
    stamps = []
    for path in sorted((*folder.glob("*"), *folder.glob("*/*"))):
        if not path.exists():  # a link without its target
            continue
        found = path.stat()
        stamps.append((str(path), found.st_ino, found.st_size, found.st_mtime_ns))
    return _understood(folder, options, tuple(stamps))


@lru_cache(maxsize=64)
def _understood(
    folder: Path, options: TextConfig, stamps: tuple[tuple[str, int, int, int], ...]
) -> TextModel:
    config = _read(folder, "config.json")
    modules = _modules(folder)
    kind = options.kind or _kind(config, modules)
    pooling, normalize, dense = _layers(folder, modules)
    if options.pooling:
        pooling = options.pooling
    if kind != "embedding":
        pooling, normalize, dense = (), False, ()
    prompts, default = _prompts(folder, options)
    offset = _offset(config)
    return TextModel(
        kind,
        pooling,
        normalize if options.normalize is None else options.normalize,
        dense,
        prompts,
        default,
        options.max_length or _max_length(folder, config, offset),
        _lower_case(folder),
        _pad_token(folder),
        offset,
        _labels(config) if kind in ("classifier", "reranker") else (),
        config.get("problem_type") == "multi_label_classification",
        str(config.get("model_type", "")),
        _has_types(folder),
    )


def describe(folder: Path, taken: Path, options: TextConfig) -> list[str]:
    """Return the parsed description of a folder, one fact per line. Raises the errors
    of `understand`.
    """
    model = understand(folder, options)
    what = f"{model.kind} of {taken.relative_to(folder)}"
    if model.kind == "embedding":
        what += f", pooling {' + '.join(model.pooling) or 'in the graph'}"
        what += f", {len(model.dense)} dense" if model.dense else ""
        what += ", length 1" if model.normalize else ""
    lines = [f"{what}, {model.max_length} tokens a text"]
    if model.prompts:
        default = f", {model.default_prompt} by default" if model.default_prompt else ""
        lines.append(f"prompts: {', '.join(sorted(model.prompts))}{default}")
    others = other_weights(folder, taken)
    if others:
        lines.append(f"other ONNX files, for `file` in [text]: {', '.join(others)}")
    return lines


def _read(folder: Path, name: str) -> dict[str, Any]:
    found = _document(folder / name, name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ValueError(f"{name}: expected an object, got {type(found).__name__}")
    return found


def _document(path: Path, name: str) -> Any:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_JSON + 1)
    except FileNotFoundError:
        return None
    if len(data) > MAX_JSON:
        raise ValueError(f"{name} has more than {MAX_JSON} bytes")
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as e:
        raise ValueError(f"{name} is not JSON: {e}") from None


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Return kind and folder of each module, in order; kinds by their last word."""
    document = _document(folder / "modules.json", "modules.json")
    if document is None:
        return []
    try:
        found = [
            (str(each["type"]).rpartition(".")[2], str(each["path"]))
            for each in sorted(document, key=lambda each: int(each["idx"]))
        ]
    except (TypeError, KeyError, ValueError) as e:
        msg = "modules.json: expected a list of modules with idx, path and type"
        raise ValueError(f"{msg} ({e!r})") from None
    for _, path in found:
        if path.startswith("/") or ".." in Path(path).parts:
            raise ValueError(f"modules.json: path {path!r} is outside the folder")
    return found


def _kind(config: Mapping[str, Any], modules: list[tuple[str, str]]) -> str:
    names = [kind for kind, _ in modules]
    if "SpladePooling" in names:
        return "splade"
    if modules:
        return "embedding"
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list):
        raise ValueError("config.json: architectures is not a list")
    if any(str(name).endswith("Classification") for name in architectures):
        return "reranker" if _label_count(config) == 1 else "classifier"
    return "embedding"


def _layers(
    folder: Path, modules: list[tuple[str, str]]
) -> tuple[tuple[str, ...], bool, tuple[Dense, ...]]:
    """Return pooling, whether vectors are normalised, and the layers in between."""
    pooling: tuple[str, ...] = ()
    normalize = False
    dense: list[Dense] = []
    for number, (kind, path) in enumerate(modules):
        if kind in ("Transformer", "MLMTransformer", "SpladePooling", "Dropout"):
            continue
        if normalize:
            raise ValueError(f"modules.json: {kind} after Normalize is not supported")
        if kind == "Pooling" and not pooling:
            pooling = _pooling(folder, path)
        elif kind == "Dense" and pooling:
            dense.append(_dense(folder, path))
        elif kind == "Normalize" and pooling:
            normalize = True
        else:
            msg = f"modules.json: module {number} is a {kind}, which is not supported"
            raise ValueError(f"{msg} in that position")
    return pooling, normalize, tuple(dense)


def _pooling(folder: Path, path: str) -> tuple[str, ...]:
    name = f"{path}/config.json"
    found = _read(folder, name)
    written = found.get("pooling_mode")
    new = [written] if isinstance(written, str) else list(written or ())
    old = [mode for key, mode in _OLD_MODES.items() if found.get(key) is True]
    unknown = [
        key
        for key, value in found.items()
        if key.startswith("pooling_mode_") and key not in _OLD_MODES and value
    ]
    if unknown:
        raise ValueError(f"{name}: {unknown[0]} is not supported")
    bad = [mode for mode in new if mode not in POOLING_MODES]
    if bad:
        known = ", ".join(POOLING_MODES)
        raise ValueError(f"{name}: pooling_mode is {bad[0]!r}; known are {known}")
    if new and old and sorted(new) != sorted(old):
        msg = f"{name}: pooling_mode is {new}, but the keys pooling_mode_… select {old}"
        raise ValueError(msg)
    modes = new or old
    if not modes:
        msg = f"{name} has neither pooling_mode nor a pooling_mode_… that is true"
        raise ValueError(f"{msg}; set pooling in the section [text] of config.toml")
    if found.get("include_prompt") is False:
        raise ValueError(f"{name}: include_prompt = false is not supported")
    # Poolings are joined in the order of sentence-transformers.
    return tuple(mode for mode in _OLD_MODES.values() if mode in modes)


def _dense(folder: Path, path: str) -> Dense:
    name = f"{path}/config.json"
    found = _read(folder, name)
    activation = str(found.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise ValueError(f"{name}: activation_function {activation} is not supported")
    file = folder / path / "model.safetensors"
    if not file.is_file():
        msg = f"{path} has no model.safetensors; PopGate reads no other file of weights"
        raise ValueError(msg)
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return Dense(str(file), digest, activation)


def _prompts(folder: Path, options: TextConfig) -> tuple[dict[str, str], str]:
    name = "config_sentence_transformers.json"
    found = _read(folder, name)
    prompts = found.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(
        isinstance(text, str) for text in prompts.values()
    ):
        raise ValueError(f"{name}: prompts is not an object of strings")
    default = options.prompt or found.get("default_prompt_name") or ""
    if default and default not in prompts:
        where = "[text] prompt" if options.prompt else f"{name}: default_prompt_name"
        raise ValueError(f"{where} is {default!r}; the prompts are {sorted(prompts)}")
    return prompts, str(default)


def _offset(config: Mapping[str, Any]) -> int:
    if config.get("model_type") not in _OFFSET_TYPES:
        return 0
    pad = config.get("pad_token_id", 1)
    if not isinstance(pad, int):
        raise ValueError("config.json: pad_token_id is not a whole number")
    return pad + 1


def _max_length(folder: Path, config: Mapping[str, Any], offset: int) -> int:
    """Return the smallest of the lengths that the files state."""
    stated: list[Any] = [
        _read(folder, name).get("max_seq_length")
        for name in READ
        if name.startswith("sentence_")
    ]
    stated.append(_read(folder, "tokenizer_config.json").get("model_max_length"))
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int):
        stated.append(positions - offset)
    sane = [int(n) for n in stated if isinstance(n, int | float) and 0 < n < _NO_LENGTH]
    if not sane:
        msg = "no file of the folder says how many tokens a string may have"
        raise ValueError(f"{msg}; set max_length in the section [text] of config.toml")
    return min(sane)


def _lower_case(folder: Path) -> bool:
    return any(
        _read(folder, name).get("do_lower_case") is True
        for name in READ
        if name.startswith("sentence_")
    )


def _pad_token(folder: Path) -> str:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        found = _read(folder, name).get("pad_token")
        if isinstance(found, dict):
            found = found.get("content")
        if isinstance(found, str):
            return found
    return ""


def _has_types(folder: Path) -> bool:
    """Return whether the tokenizer tells the second text of a pair from the first.

    Raises ValueError.
    """
    config = _read(folder, "tokenizer_config.json")
    names = config.get("model_input_names")
    if names is None:
        # The generic tokenizer class of transformers 5 gives no token types.
        return config.get("tokenizer_class") != "TokenizersBackend"
    if not isinstance(names, list):
        raise ValueError("tokenizer_config.json: model_input_names is not a list")
    return "token_type_ids" in names


def pad_id(folder: Path, model: TextModel) -> int:
    """Return the id of the padding token; 0 if no file contains it. Raises
    ValueError.
    """
    found = _read(folder, "config.json").get("pad_token_id")
    if isinstance(found, int) and found >= 0:
        return found
    added = _read(folder, TOKENIZER).get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and token.get("content") == model.pad_token:
            found = token.get("id")
            return found if isinstance(found, int) and found >= 0 else 0
    return 0


def _label_count(config: Mapping[str, Any]) -> int:
    labels = config.get("id2label")
    if isinstance(labels, dict) and labels:
        return len(labels)
    count = config.get("num_labels", 2)
    return count if isinstance(count, int) else 2


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    labels = config.get("id2label")
    if not isinstance(labels, dict):
        return ()
    try:
        return tuple(str(labels[str(n)]) for n in range(len(labels)))
    except KeyError as e:
        raise ValueError(f"config.json: id2label has no entry {e}") from None
