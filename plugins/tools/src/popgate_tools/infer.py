"""`popgate infer`: post tensors to a running gateway and show the answer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.errors import EXIT_USAGE, CommandError
from app.cli.pairs import parse_pairs
from app.observe.log_text import escaped
from app.sizes import counted
from popgate_tools.asking import AskedModel, RequestOptions, Server, ask_model, grouped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from popgate_client import Client, Outputs, Tensor

# Seconds: long enough for a large model's first answer.
TIMEOUT = 300.0


@grouped
def infer(
    name: Annotated[str, typer.Argument(help=
        "Name of the model, as `popgate models` lists it.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", "-i", metavar="NAME=VALUE",
            help=
                "An input: NAME=file.npy, NAME=file.npz, or a JSON value as in "
                "NAME='[[1, 2]]'. Or file.npz, whose arrays have the names of the "
                "inputs. May be repeated.",
        ),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            "--output", "-o", metavar="NAME=FILE",
            help=
                "Write this output to a .npy file instead of printing it. May be "
                "repeated.",
        ),
    ] = None,
    encoding: Annotated[
        str,
        typer.Option("--encoding", "-e", metavar="json|msgpack|binary|npy",
                     help="Encoding of the tensors."),
    ] = "binary",
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.001, max=1e6,
                     help="Time limit of the request."),
    ] = TIMEOUT,
    *,
    server: Server,
    request: RequestOptions,
) -> None:  # fmt: skip
    """Run a model of a running gateway on your data.

    If the model gives several responses, each is shown as it comes.

    For example: popgate infer digits --input image=digit.npy
    """
    wanted = parse_pairs(outputs, "--output")
    _check_encoding(encoding)
    options: dict[str, Any] = {"encoding": encoding, "retries": 0}
    with server.errors(), server.client(timeout=timeout, **options) as client:
        model = ask_model(client, name, request.version)
        tensors = _read_inputs(model, _given(inputs))
        shown, count = model.version, 0
        started = time.perf_counter()
        took = 0.0
        for results in _responses(client, model, tensors, request):
            took = 1e3 * (time.perf_counter() - started)
            shown, count = results.model_version or shown, count + 1
            _deliver(results, wanted, count if model.streams else 0)
    responses = f", {counted(count, 'response')}" if model.streams else ""
    typer.echo(f"{name} version {shown}{responses}, {took:.1f} ms", err=True)


def _check_encoding(encoding: str) -> None:
    from popgate_client import Encoding

    known = [e.value for e in Encoding]
    if encoding not in known:
        msg = f"--encoding {encoding}: expected one of {', '.join(known)}"
        raise CommandError(msg, EXIT_USAGE)


def _given(inputs: list[str] | None) -> dict[str, str]:
    """Return the value of each input. A file without a name provides all its arrays."""
    from popgate_tools.tensors import read_archive

    texts = inputs or []
    archives = [t for t in texts if "=" not in t and t.endswith(".npz")]
    found: dict[str, str] = {}
    for path in archives:
        found |= dict.fromkeys(read_archive(path), path)
    return found | parse_pairs([t for t in texts if t not in archives], "--input")


def _read_inputs(model: AskedModel, given: dict[str, str]) -> dict[str, Tensor]:
    from popgate_tools.tensors import is_file, read_value

    if wrong := model.problems(given):
        msg = f"{'; '.join(wrong)}. {model.name} takes: {model.takes()}"
        raise CommandError(msg, EXIT_USAGE)
    as_files = model.taking_files()
    return {
        name: read_value(
            given[name], name, *(as_files[name] if is_file(given[name]) else spec)
        )
        for name, spec in model.inputs.items()
        if name in given
    }


def _responses(
    client: Client,
    model: AskedModel,
    tensors: Mapping[str, Any],
    request: RequestOptions,
) -> Iterator[Outputs]:
    """Yield the response of a request, or several as they come."""
    options: dict[str, Any] = {
        "version": request.version, "parameters": request.all_parameters(),
    }  # fmt: skip
    if model.streams:
        yield from client.stream(model.name, tensors, **options)
    else:
        yield client.infer(model.name, tensors, **options)


def _deliver(results: Outputs, wanted: dict[str, str], number: int) -> None:
    """Print a response, or write it to files. `number` counts several responses from
    1.
    """
    import numpy as np

    from app.spec import notation
    from popgate_client import Tensor
    from popgate_client.values import fixed_width
    from popgate_tools.tensors import text_of, writing

    for name in wanted:
        if name not in results:
            msg = (
                f"--output {name}: the model has no such output; its outputs are "
                f"{', '.join(results)}"
            )
            raise CommandError(msg, EXIT_USAGE)
    for name, array in results.items():
        datatype = results.datatypes[name]
        head = f"{escaped(name)}  {notation(datatype, array.shape)}"
        if name in wanted:
            target = Path(wanted[name])
            if number:  # NAME=y.npy becomes y.1.npy, y.2.npy
                target = target.with_suffix(f".{number}{target.suffix}")
            try:
                saved = fixed_width(array) if datatype == "BYTES" else array
                with writing(target) as file:
                    np.save(file, saved, allow_pickle=False)
            except ValueError as e:
                raise CommandError(f"--output {name}: the output {e}") from None
            typer.echo(f"{head} → {target}")
        else:
            typer.echo(head)
            typer.echo(text_of(Tensor(name, datatype, array)))
