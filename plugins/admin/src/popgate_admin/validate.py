"""`popgate validate`: the models that a folder would serve, and its problems."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.errors import EXIT_FAILED, EXIT_USAGE, CommandError
from app.observe.log_text import escaped
from popgate_admin.table import json_text

if TYPE_CHECKING:
    from app.repository.model_sources import RemoteCaches
    from app.spec import ModelSpec, TensorSpec
    from popgate_admin.preview import ModelPreview, RepositoryPreview, VersionPreview

MAX_TENSORS_SHOWN = 8


def validate(
    place: Annotated[
        str,
        typer.Argument(
            metavar="DIR|[NAME=]URL",
            help="The folder of models, as for serve, or a remote model's URL.",
        ),
    ],
    devices: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help=
            "The devices that serve will have, as for serve. [default: one]"
        ),
    ] = None,
    cache_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help=
            "Folder for compiled ONNX files, as for serve. [default: ~/.cache/popgate]"
        ),
    ] = None,
    allow_python: Annotated[
        bool,
        typer.Option("--allow-python", help=
            "Run Python models, as for serve, to find their inputs and outputs."
        ),
    ] = False,
    model_cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help=
            ("Folder for downloaded remote models, as for serve. [default: the "
"folder models of --cache-dir]")
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:  # fmt: skip
    """Show the models that a folder would serve, and its problems.

    For every model it shows name, version, tensors, batching, instances and memory. For
    every problem it names the file and the key to change. The exit code is 1 if there
    is a problem.

    ONNX files are compiled into the cache, so the server need not compile them again.
    Warm-ups run in a separate process; no device of the pool is used.

    For a remote model (s3://bucket/digits, or `source` in config.toml) it lists the
    files to download and the files in the cache. It downloads nothing.
    """
    from app.repository.compilers import compiler
    from app.repository.model_sources import FetchOptions, RemoteCaches
    from app.settings import default_cache_dir
    from popgate_admin.preview import preview_repository

    root = Path(place)
    cache_dir = cache_dir or default_cache_dir()
    options = FetchOptions(allow_python=allow_python)
    remote = RemoteCaches(model_cache or cache_dir / "models", options)
    if ":/" in place and not root.is_dir():
        _elsewhere(place, remote, json)
        return
    if not root.is_dir():
        if root.exists():
            raise CommandError(f"{root} is a file; name its folder", EXIT_USAGE)
        raise CommandError(f"the folder {root} does not exist", EXIT_USAGE)
    count = _count(devices)
    try:
        with contextlib.closing(compiler().cache(cache_dir)) as cache:
            found = preview_repository(
                root, cache, remote, devices=count, allow_python=allow_python
            )
    except OSError as e:
        raise CommandError(f"{root} cannot be read: {e.strerror}") from None
    if json:
        _print_json(_document(root, found))
    else:
        _print(root, found)
    if not found.is_good:
        raise typer.Exit(EXIT_FAILED)


def _count(devices: str | None) -> int:
    from engine import InvalidConfig, named_devices

    try:
        named = named_devices(devices)
    except InvalidConfig as e:
        raise CommandError(str(e), EXIT_USAGE) from None
    return 1 if named is None else len(named)


def _print_json(document: dict[str, Any]) -> None:
    typer.echo(json_text(document))


def _elsewhere(place: str, remote: RemoteCaches, json: bool) -> None:
    """Show what the server would do for a model outside this machine."""
    from app.repository.model_sources import RemoteError
    from app.repository.places import ModelPlaces
    from app.sizes import counted, size_text
    from engine import InvalidConfig

    try:
        ((name, url),) = ModelPlaces.of(None, [place], remote).named.items()
        assert not isinstance(url, Path)
        listing, cached = remote.of(url).preview(url)
    except (InvalidConfig, ValueError) as e:
        raise CommandError(str(e), EXIT_USAGE) from None
    except RemoteError as e:
        why = str(e) if str(url) in str(e) else f"{url}: {e}"
        raise CommandError(why, EXIT_FAILED) from None
    if json:
        files = [
            {
                "name": file.name,
                "size": file.size,
                "checksums": dict(file.checksums),
                "in_cache": file.name in cached,
            }
            for file in listing.files
        ]
        _print_json(
            {
                "name": name,
                "url": str(url),
                "digest": listing.digest,
                "files": files,
                "not_taken": list(listing.skipped),
            }
        )
        return
    for file in listing.files:
        size = "?" if file.size is None else size_text(file.size)
        where = "in the cache" if file.name in cached else "would come"
        typer.echo(f"{where:<12}  {size:>8}  {file.name}")
    for skipped in listing.skipped:
        typer.echo(f"{'not taken':<12}  {'':>8}  {skipped}")
    coming = [file for file in listing.files if file.name not in cached]
    size = size_text(sum(file.size or 0 for file in coming))
    typer.echo(f"{name}: {counted(len(coming), 'file')}, {size}, would come from {url}")


def _document(root: Path, found: RepositoryPreview) -> dict[str, Any]:
    return {
        "repository": str(root),
        "ok": found.is_good,
        "problems": list(found.problems),
        "memory": sum(model.memory for model in found.models),
        "models": [
            {
                "name": model.name,
                "ok": not model.problems,
                "to_come": model.to_come,
                "problems": list(model.problems),
                "notes": list(model.notes),
                "versions_served": str(model.config.versions),
                "instances": model.config.instances,
                "devices": list(model.config.devices),
                "memory": model.memory,
                "versions": [_version(v) for v in model.versions],
            }
            for model in found.models
        ],
    }


def _version(version: VersionPreview) -> dict[str, Any]:
    from app.api.examples import shown_shape
    from app.repository.source import PYTHON_MODEL

    def tensors(spec: ModelSpec, found: tuple[TensorSpec, ...]) -> list[dict[str, Any]]:
        return [
            {"name": t.name, "datatype": t.datatype, "shape": shown_shape(spec, t)}
            for t in found
        ]

    document: dict[str, Any] = {
        "version": version.version,
        "ok": not version.problem,
        "problem": version.problem,
        "files": list(version.files),
        "is_code": PYTHON_MODEL in version.files,
        "memory": version.memory,
    }
    spec = version.spec
    if spec is not None:
        document["inputs"] = tensors(spec, spec.inputs)
        document["outputs"] = tensors(spec, spec.outputs)
        document["max_batch_size"] = spec.max_batch_size
    return document


def _print(root: Path, found: RepositoryPreview) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from app.sizes import counted, size_text

    console = Console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("model", "version", "tensors", "batch", "instances", "memory"):
        fixed = title in ("version", "instances", "memory")
        table.add_column(title, no_wrap=fixed, overflow="fold")
    for model in found.models:
        for row in _rows(model):
            table.add_row(*map(Text, row))
        table.add_section()
    if found.models:
        console.print(table)
    for problem in found.all_problems:
        console.print(Text(f"wrong  {problem}", style="red"), soft_wrap=True)
    for note in (note for model in found.models for note in model.notes):
        console.print(Text(f"note   {note}"), soft_wrap=True)
    served = sum(model.is_served for model in found.models)
    memory = size_text(sum(model.memory for model in found.models))
    problems = len(found.all_problems)
    wrong = "nothing is wrong" if found.is_good else f"{problems} wrong"
    console.print(
        Text(
            f"{root}: {served} of {counted(len(found.models), 'model')} would be "
            f"served, "
            f"in about {memory}; {wrong}"
        ),
        soft_wrap=True,
    )


def _rows(model: ModelPreview) -> list[tuple[str, ...]]:
    from app.sizes import size_text

    if not model.versions:
        what = "would come" if model.to_come else "not served"
        return [(model.name, "-", what, "", "", "")]
    config = model.config
    on = f" on {', '.join(map(str, config.devices))}" if config.devices else ""
    rows: list[tuple[str, ...]] = []
    for version in reversed(model.versions):
        first = not rows
        name = model.name if first else ""
        spec = version.spec
        if spec is None:
            what = "not served" if model.problems else "not known yet"
            rows.append((name, str(version.version), what, "", "", ""))
            continue
        rows.append(
            (
                name,
                f"{version.version}",
                _tensors(spec, spec.inputs, "")
                + "\n"
                + _tensors(spec, spec.outputs, "→ "),
                f"{spec.max_batch_size}" if spec.is_batched else "no",
                "steps" if config.ensemble is not None else f"{config.instances}{on}",
                size_text(version.memory) if version.memory else "-",
            )
        )
    return rows


def _tensors(spec: ModelSpec, tensors: tuple[TensorSpec, ...], mark: str) -> str:
    from app.api.examples import shown_shape
    from app.spec import notation

    lines = []
    for tensor in tensors[:MAX_TENSORS_SHOWN]:
        shape = shown_shape(spec, tensor)
        text = f"{escaped(tensor.name)} {notation(tensor.datatype, shape)}"
        lines.append(mark + text)
    if len(tensors) > MAX_TENSORS_SHOWN:
        lines.append(f"{mark}and {len(tensors) - MAX_TENSORS_SHOWN} more")
    return "\n".join(lines)
