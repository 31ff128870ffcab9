"""`popgate infer`: post tensors to a running gateway and show what comes back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.errors import EXIT_USAGE, CommandError, client_errors
from app.cli.options import SERVER, Url, Version
from app.cli.pairs import parse_pairs

if TYPE_CHECKING:
    from popgate.client import Client, Outputs, Tensor

# Long enough for a large model's first answer.
TIMEOUT = 300.0


def infer(
    name: Annotated[str, typer.Argument(help="The model, as `GET /v1/models` lists.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", "-i", metavar="NAME=VALUE",
            help="An input: NAME=file.npy, NAME=file.npz, or a JSON value as in "
            "NAME='[[1, 2]]'; or file.npz for all arrays in it, by their names.",
        ),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            "--output", "-o", metavar="NAME=FILE",
            help="Write an output to a .npy file instead of showing it.",
        ),
    ] = None,
    encoding: Annotated[
        str,
        typer.Option("--encoding", "-e", metavar="json|msgpack|binary|npy",
                     help="How the tensors travel."),
    ] = "binary",
    url: Url = SERVER,
    version: Version = "",
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time limit.")
    ] = TIMEOUT,
) -> None:  # fmt: skip
    """Run a model of a running gateway on your data.

    For example: popgate infer digits --input image=digit.npy
    """
    from popgate.client import Client

    wanted = parse_pairs(outputs, "--output")
    _check_encoding(encoding)
    with (
        client_errors(url),
        Client(url, timeout=timeout, encoding=encoding, retries=0) as client,
    ):
        metadata = _metadata(client, name, version)
        tensors = _read_inputs(metadata, _given(inputs))
        started = time.perf_counter()
        results = client.infer(name, tensors, version=version)
        milliseconds = 1e3 * (time.perf_counter() - started)
    _deliver(results, wanted)
    shown = results.model_version or metadata["versions"][-1]
    typer.echo(f"{name} version {shown}, {milliseconds:.1f} ms", err=True)


def _check_encoding(encoding: str) -> None:
    from popgate.client import Encoding

    known = [e.value for e in Encoding]
    if encoding not in known:
        msg = f"--encoding {encoding}: expected one of {', '.join(known)}"
        raise CommandError(msg, EXIT_USAGE)


def _metadata(client: Client, name: str, version: str) -> dict[str, Any]:
    """What the model takes, or why it takes nothing."""
    from popgate.client import ClientError, ConnectionFailed

    try:
        document: dict[str, Any] = client.metadata(name, version=version)
    except ConnectionFailed:
        raise
    except ClientError as error:
        for item in client.models():
            if item["name"] == name and item.get("reason"):
                which = f"version {item['version']}: " if item.get("version") else ""
                msg = f"{name} is {item['state']}: {which}{item['reason']}"
                raise CommandError(msg) from None
        raise error from None
    return document


def _given(inputs: list[str] | None) -> dict[str, str]:
    """What is said of each input; all that a file without a name holds."""
    from app.cli.tensors import read_archive

    texts = inputs or []
    archives = [t for t in texts if "=" not in t and t.endswith(".npz")]
    found: dict[str, str] = {}
    for path in archives:
        found |= dict.fromkeys(read_archive(path), path)
    return found | parse_pairs([t for t in texts if t not in archives], "--input")


def _read_inputs(model: dict[str, Any], given: dict[str, str]) -> dict[str, Tensor]:
    from app.cli.tensors import read_value
    from app.spec import notation

    known = {item["name"]: item for item in model["inputs"]}
    shown = ", ".join(
        f"{n} {notation(i['datatype'], i['shape'])}" for n, i in known.items()
    )
    unknown, missing = set(given) - set(known), set(known) - set(given)
    if unknown or missing:
        wrong = [f"no input {n!r}" for n in sorted(unknown)]
        wrong += [f"--input {n}=… is missing" for n in sorted(missing)]
        msg = f"{'; '.join(wrong)}. {model['name']} takes: {shown}"
        raise CommandError(msg, EXIT_USAGE)
    return {
        n: read_value(given[n], n, i["datatype"], i["shape"]) for n, i in known.items()
    }


def _deliver(results: Outputs, wanted: dict[str, str]) -> None:
    import numpy as np

    from app.cli.tensors import text_of
    from app.spec import notation
    from popgate.client import Tensor

    for name in wanted:
        if name not in results:
            msg = f"no output {name!r}; there are {', '.join(results)}"
            raise CommandError(msg, EXIT_USAGE)
    for name, array in results.items():
        datatype = results.datatypes[name]
        head = f"{name}  {notation(datatype, array.shape)}"
        if name in wanted:
            target = Path(wanted[name])
            saved = array.astype(np.bytes_) if datatype == "BYTES" else array
            try:
                with target.open("wb") as file:
                    np.save(file, saved, allow_pickle=False)
            except OSError as e:
                raise CommandError(f"{target}: {e.strerror}") from None
            typer.echo(f"{head} → {target}")
        else:
            typer.echo(head)
            typer.echo(text_of(Tensor(name, datatype, array)))
