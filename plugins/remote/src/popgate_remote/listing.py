"""The files of one model at a URL, checked before any of them is read.

Names of remote files become paths in the cache, so every part must be a plain name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from app.repository.model_sources import RemoteError
from app.sizes import counted, size_text

MAX_FILES = 10_000
MAX_DEPTH = 8  # most nested folders
MAX_FOLDERS = 1000  # most folders, each of which takes a request
MAX_NAME = 1000  # most bytes of a path
MODEL_SUFFIXES = (".onnx", ".popef")

# A name has no separators of any system, no control characters, and is not `.` or `..`.
_PART = re.compile(r"(?!\.{1,2}$)[^/\\\x00-\x1f\x7f]{1,200}")
_VERSION = re.compile(r"[1-9][0-9]{0,17}")
#: Weights in the repositories of text models that only other programs read.
_OF_OTHERS = re.compile(
    r"(pytorch_model|model|tf_model|flax_model|rust_model)[\w.-]*"
    r"\.(bin|safetensors|h5|msgpack|ot)|openvino/.*|coreml/.*"
)
#: Files whose code runs when they are loaded.
_CODE = (".py", ".pyc", ".so")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file. `name` is its path within the model, `place` where its source finds it.

    `size` is in bytes, None if it is not stated. `tag` changes with the content; it is
    empty if the source has no such value. `checksums` are pairs of algorithm
    (``sha256``, ``md5``, ``git``: that of a git blob) and hexadecimal digits.
    """

    name: str
    place: str
    size: int | None
    tag: str = ""
    checksums: tuple[tuple[str, str], ...] = ()

    @property
    def sha256(self) -> str:
        """Return the stated SHA-256, or an empty string."""
        return dict(self.checksums).get("sha256", "")

    @property
    def identity(self) -> tuple[str, int | None, str]:
        """Return a value that is equal for files with the same name and content."""
        return self.name, self.size, self.sha256 or self.tag

    @property
    def can_change(self) -> bool:
        """Return whether the content may differ the next time."""
        return not self.checksums


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of one model, by name; `skipped` are not downloaded."""

    files: tuple[RemoteFile, ...]
    skipped: tuple[str, ...] = ()
    digest: str = field(init=False)
    """Digest that changes if a file is changed, added or removed."""

    def __post_init__(self) -> None:
        text = json.dumps([file.identity for file in self.files])
        object.__setattr__(self, "digest", hashlib.sha256(text.encode()).hexdigest())

    @classmethod
    def of(
        cls, found: Iterable[RemoteFile], *, allow_python: bool, limit: int = 0
    ) -> Self:
        """Return the files to download among those found.

        `limit` is the most bytes of all files; 0: no limit. Raises `RemoteError` for
        invalid names, too many bytes, or if there is no model.
        """
        taken: dict[str, RemoteFile] = {}
        skipped = []
        for number, file in enumerate(found):
            if number >= MAX_FILES:
                raise RemoteError(f"the model has more than {MAX_FILES} files")
            check_name(file.name)
            if file.name in taken:
                raise RemoteError(f"two files have the name {file.name!r}")
            if _is_skipped(file.name, allow_python):
                skipped.append(file.name)
            else:
                taken[file.name] = file
        for name in taken:
            parts = name.split("/")
            above = ("/".join(parts[:n]) for n in range(1, len(parts)))
            if clash := next((a for a in above if a in taken), None):
                raise RemoteError(f"{clash!r} is both a file and a folder")
        has_tokenizer = "tokenizer.json" in taken
        of_others = list(filter(_OF_OTHERS.fullmatch, taken)) if has_tokenizer else []
        skipped += [name for name in of_others if taken.pop(name)]
        size = sum(file.size or 0 for file in taken.values())
        if limit and size > limit:
            msg = (
                f"{counted(len(taken), 'file')} of {size_text(size)} in all, more than "
                f"--model-download-limit ({size_text(limit)})"
            )
            raise RemoteError(msg)
        models = [name for name in taken if is_model_file(name, allow_python)]
        if models and not any(_is_served(name, has_tokenizer) for name in models):
            msg = (
                f"{models[0]} is nested too deeply: a model must be at the top "
                "of its folder or in the folder of a version (1/, 2/); put "
                "the folder of the file, or the file, into the URL"
            )
            raise RemoteError(msg)
        if not models:
            where = f"; ignored: {', '.join(skipped[:5])}" if skipped else ""
            why = f"it has neither an .onnx nor a .popef file{where}"
            if any(name.endswith(".py") for name in skipped):
                why += " (Python files require --allow-python)"
            raise RemoteError(why)
        return cls(tuple(taken[name] for name in sorted(taken)), tuple(sorted(skipped)))

    @property
    def size(self) -> int:
        """Return the bytes of all files whose size is stated."""
        return sum(file.size or 0 for file in self.files)


class Folders:
    """The folders that are read for one listing."""

    def __init__(self) -> None:
        self._count = 0

    def enter(self, depth: int) -> None:
        """Count a folder. Raises `RemoteError` if there are too many."""
        self._count += 1
        if depth > MAX_DEPTH:
            raise RemoteError(f"folders are nested more than {MAX_DEPTH} deep")
        if self._count > MAX_FOLDERS:
            raise RemoteError(f"the model has more than {MAX_FOLDERS} folders")


def check_name(name: str) -> None:
    """Raise RemoteError unless a name can be a path in the cache, and stays in it."""
    parts = name.split("/")
    if not all(_PART.fullmatch(part) for part in parts):
        raise RemoteError(f"{name!r} is not a valid file name in the model cache")
    if len(parts) > MAX_DEPTH or len(name.encode(errors="replace")) > MAX_NAME:
        raise RemoteError(f"the name of a file is too long: {name[:100]!r}...")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise RemoteError(f"the name of a file is not valid UTF-8: {name!r}") from None


def is_model_file(name: str, allow_python: bool = False) -> bool:
    """Return whether a file is part of a model."""
    last = name.rsplit("/", 1)[-1]
    return last.endswith(MODEL_SUFFIXES) or (allow_python and last == "model.py")


def belongs_to(name: str, model: str) -> bool:
    """Return whether a file beside a model is its external data: ``model.onnx_data``,
    ``model.onnx.data``.
    """
    rest = name.removeprefix(model)
    return name == model or (rest != name and rest[:1] in ("_", "."))


def _is_served(name: str, has_tokenizer: bool) -> bool:
    """Return whether a model's file is in a place that PopGate serves.

    A text model has its file in `onnx/`, and its tokenizer above.
    """
    folder, _, rest = name.partition("/")
    if not rest or (has_tokenizer and folder == "onnx"):
        return True
    return _VERSION.fullmatch(folder) is not None and "/" not in rest


def _is_skipped(name: str, allow_python: bool) -> bool:
    if any(part.startswith(".") or part == "__pycache__" for part in name.split("/")):
        return True
    return name.endswith(_CODE) and not allow_python
