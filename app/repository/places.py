"""Places of the served models: one folder, and named paths.

    popgate serve --model-repository models      the models in the folder
    popgate serve model.onnx                     one file, called `model`
    popgate serve digits=out/v7.onnx             one file, called `digits`
    popgate serve digits/                        a folder with versions, as in models/
    popgate serve digits=s3://bucket/digits      a remote model, through a cache

A folder's `config.toml` with `source = "s3://bucket/digits"` serves a remote model,
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from app.config.config_formats import config_files
from app.config.model_options import Origin
from app.repository.formats import recognise
from app.repository.model_sources import RemoteCaches, RemoteUrl, is_url, parse_url
from app.repository.scan import (
    CONFIG_NAME,
    SUFFIXES,
    is_folder,
    is_version,
    scan_model,
    scan_named,
    scan_names,
)
from app.repository.source import ScannedModel, is_model_name
from engine import InvalidConfig

#: Files of libraries for which `popgate pack` makes a model.
_LIBRARIES = {
    ".joblib": "sklearn", ".pkl": "sklearn", ".pickle": "sklearn",
    ".ubj": "xgboost", ".pt": "torch", ".pth": "torch", ".pt2": "torch",
}  # fmt: skip
_PAGE = "docs/how-to/bring-a-model.md"
#: Extensions of files that contain only weights.
_WEIGHTS = (".safetensors", ".bin", ".ckpt", ".h5", ".keras", ".gguf")
_HUGGING_FACE = (
    "{0} is a Hugging Face folder, which holds weights without a program; export it "
    f"to ONNX (`optimum-cli export onnx --model {{0}} DIR`, {_PAGE}), or load it in a "
    "model.py of your own "
    "(docs/reference/python-models.md)"
)


@dataclass(frozen=True, slots=True)
class ModelPlaces:
    """A folder of models, if there is one, and single models by name, which take
    precedence.

    `remote` downloads remote models into its cache.
    """

    folder: Path | None
    named: Mapping[str, Path | RemoteUrl] = field(default_factory=dict)
    remote: RemoteCaches | None = None

    @classmethod
    def of(
        cls,
        folder: Path | None,
        models: Iterable[str],
        remote: RemoteCaches | None = None,
    ) -> Self:
        """Make the places of `models`: ``NAME=PATH``, or ``PATH`` alone.

        A URL instead of a path names a model of `remote`. Raises `engine.InvalidConfig`
        if a path does not exist or is not a model, or if two models have the same name.
        """
        named: dict[str, Path | RemoteUrl] = {}
        for text in models:
            name, path = _named(text)
            if name in named:
                msg = (
                    f"two models have the name {name!r}: {named[name]} and {path}; "
                    f"name one of them, as in --model other={path}"
                )
                raise InvalidConfig(msg)
            named[name] = path
        return cls(folder, named, remote)

    def names(self) -> list[str]:
        """Return the names of all models, sorted. Raises OSError."""
        found = scan_names(self.folder) if self.folder is not None else []
        return sorted({*found, *self.named})

    def scan(self, name: str, override: str | None = None) -> ScannedModel | None:
        """Return the model in its present state; None if it does not exist.

        Raises OSError.
        """
        place = self.named.get(name)
        if place is not None and not isinstance(place, Path):
            return self._scan_remote(ScannedModel(name, url=place), override)
        if place is not None:
            found = scan_named(place, name, override)
        elif self.folder is not None:
            place = self.folder / name
            found = scan_model(self.folder, name, override)
        else:
            return None
        if found is None or found.url is None:
            return found
        return self._scan_remote(found, override, place / CONFIG_NAME)

    def holds(self, name: str) -> bool:
        """Return whether the folder or a named path exists under this name."""
        if self.folder is None or not is_model_name(name):
            return False
        return any((self.folder / f"{name}{end}").exists() for end in ("", *SUFFIXES))

    def scan_all(self) -> dict[str, ScannedModel]:
        """Return every model by name. Raises OSError."""
        found = ((name, self.scan(name)) for name in self.names())
        return {name: scanned for name, scanned in found if scanned is not None}

    def _scan_remote(
        self, here: ScannedModel, override: str | None, config: Path | None = None
    ) -> ScannedModel:
        """Return the cached files of a remote model; `config` is the file with
        its URL.
        """
        url, remote = here.url, self.remote
        assert url is not None
        assert remote is not None
        models = remote.of(url)
        folder = models.folder_of(url)
        if folder is None:
            problem = models.problem_of(url) or f"{url} is not downloaded yet"
            return replace(here, problem=problem)
        # Write access to the remote place does not give the right to write files here
        # or to run code.
        origin = Origin(str(url), remote.options.allow_python, config)
        found = scan_named(folder, here.name, override, origin=origin)
        if found is None:
            return replace(here, problem=f"{url} was removed in the meantime")
        return replace(found, url=url, stamp=here.stamp + found.stamp)

    def public(self, reason: str) -> str:
        """Return a reason that clients may read, without hosts, buckets and their
        answers.
        """
        if self.remote is not None and self.remote.names_a_place(reason):
            return "the model could not be loaded; the server's log has the reason"
        return reason

    def __str__(self) -> str:
        folder = [str(self.folder)] if self.folder is not None else []
        return ", ".join([*folder, *map(str, self.named.values())])


def is_one_model(folder: Path) -> bool:
    """Return whether a folder holds one model: it has versions or a configuration."""
    return any(
        (is_version(e.name) and is_folder(e))
        or e.name == CONFIG_NAME
        or e.name in config_files()
        for e in folder.iterdir()
    )


def _named(text: str) -> tuple[str, Path | RemoteUrl]:
    """Return the name and the place of one model."""
    given, equals, rest = text.partition("=")
    name, place = (given, rest) if equals and is_model_name(given) else ("", text)
    if is_url(place):
        url = parse_url(place)
        return _checked(name or url.name, place), url
    path = Path(place)
    if not path.exists():
        raise InvalidConfig(f"the file or folder {path} does not exist")
    if not path.is_dir() and path.suffix not in (*SUFFIXES, ".py"):
        raise InvalidConfig(_no_model(path))
    if path.is_dir() and is_weights(path):
        raise InvalidConfig(_HUGGING_FACE.format(path))
    absolute = path.absolute()
    if not name:
        name = absolute.name if path.is_dir() else path.stem
    return _checked(name, path), path


def _no_model(path: Path) -> str:
    """Return why a file is not a model, and how to make a model of it."""
    library = _LIBRARIES.get(path.suffix.lower())
    if library:
        target = f"models/{path.stem}"
        return (
            f"{path} cannot be served directly; `popgate pack {library} {path} -o "
            f"{target}` writes a model.py around it, and {_PAGE} converts it to ONNX"
        )
    if path.suffix.lower() in _WEIGHTS:
        return (
            f"{path} holds weights without a program; export the model to ONNX "
            f"({_PAGE}), or load the file in your own model.py "
            "(docs/reference/python-models.md)"
        )
    return (
        f"{path} is not a model: expected .onnx, .popef or .py, or a folder with one; "
        "docs/README.md names the page for each library"
    )


def is_weights(folder: Path) -> bool:
    """Return whether a folder holds weights in Hugging Face's layout, but no model."""
    if not (folder / "config.json").is_file() or is_one_model(folder):
        return False
    names = [entry.name for entry in folder.iterdir()]
    weights = any(name.endswith((".safetensors", ".bin")) for name in names)
    ready = any(name.endswith((*SUFFIXES, ".py")) for name in names)
    return weights and not ready and not recognise(folder, {})[0]


def _checked(name: str, place: object) -> str:
    if not is_model_name(name):
        msg = (
            f"{name!r} is not a valid model name (letters, digits and '_.,+-'); set a "
            f"name, as in --model NAME={place}"
        )
        raise InvalidConfig(msg)
    return name
