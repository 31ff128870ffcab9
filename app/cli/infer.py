"""`popgate infer`: post tensors to a running gateway and show what comes back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.errors import EXIT_USAGE, CommandError
from app.cli.pairs import parse_pairs

if TYPE_CHECKING:
    import httpx

    from app.cli.tensors import NamedTensor

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
    url: Annotated[
        str, typer.Option(help="Where the gateway is.", envvar="POPGATE_URL")
    ] = "http://127.0.0.1:8000",
    version: Annotated[
        str | None, typer.Option(help="Version of the model. [default: the highest]")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait.")] = TIMEOUT,
) -> None:  # fmt: skip
    """Run a model of a running gateway on your data.

    For example: popgate infer digits --input image=digit.npy
    """
    import httpx

    wanted = parse_pairs(outputs, "--output")
    try:
        client = httpx.Client(base_url=url, timeout=timeout, trust_env=False)
    except httpx.InvalidURL as e:
        raise CommandError(f"--url {url}: {e}", EXIT_USAGE) from None
    path = f"/v1/models/{name}" + (f"/versions/{version}" if version else "")
    with client:
        try:
            model = _json(client.get(path))
            tensors = _read_inputs(model, _given(inputs))
            response, results = _post(client, f"{path}/infer", tensors, encoding)
        except httpx.TransportError as e:
            msg = f"no answer from {url}: {e}; is `popgate serve` running there?"
            raise CommandError(msg) from None
    if len(results) == 1 and encoding == "npy":
        results = [_renamed(results[0], model)]
    _deliver(results, wanted)
    milliseconds = response.elapsed.total_seconds() * 1000
    typer.echo(f"{name} version {model['version']}, {milliseconds:.1f} ms", err=True)


def _json(response: httpx.Response) -> dict[str, Any]:
    try:
        document = response.json()
    except ValueError:
        document = {}
    if response.is_success and isinstance(document, dict):
        return document
    text = document.get("error") if isinstance(document, dict) else None
    raise CommandError(f"{text or response.text} (status {response.status_code})")


def _given(inputs: list[str] | None) -> dict[str, str]:
    """What is said of each input; all that a file without a name holds."""
    from app.cli.tensors import TensorError, read_archive

    texts = inputs or []
    archives = [t for t in texts if "=" not in t and t.endswith(".npz")]
    found: dict[str, str] = {}
    try:
        for path in archives:
            found |= dict.fromkeys(read_archive(path), path)
    except TensorError as e:
        raise CommandError(str(e), EXIT_USAGE) from None
    return found | parse_pairs([t for t in texts if t not in archives], "--input")


def _read_inputs(model: dict[str, Any], given: dict[str, str]) -> list[NamedTensor]:
    from app.cli.tensors import TensorError, read_value
    from app.spec import notation

    if not model["outputs"]:  # what is not loaded is not known; each model has some
        raise CommandError(f"{model['name']} is {model['state']}: {model['reason']}")
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
    try:
        return [
            read_value(given[n], n, i["datatype"], i["shape"]) for n, i in known.items()
        ]
    except TensorError as e:
        raise CommandError(str(e), EXIT_USAGE) from None


def _post(
    client: httpx.Client, path: str, tensors: list[NamedTensor], encoding: str
) -> tuple[httpx.Response, list[NamedTensor]]:
    from app.cli.tensors import Encoding, TensorError, decode_response, encode_request

    try:
        headers, body = encode_request(tensors, Encoding(encoding))
    except ValueError:
        known = ", ".join(e.value for e in Encoding)
        msg = f"--encoding {encoding}: expected one of {known}"
        raise CommandError(msg, EXIT_USAGE) from None
    except TensorError as e:
        raise CommandError(str(e), EXIT_USAGE) from None
    response = client.post(path, content=body, headers=headers)
    if not response.is_success:
        _json(response)
    try:
        return response, decode_response(response.headers, response.content)
    except TensorError as e:
        raise CommandError(str(e)) from None


def _renamed(result: NamedTensor, model: dict[str, Any]) -> NamedTensor:
    """An .npy body carries no name: it is the model's first output."""
    from app.cli.tensors import NamedTensor

    output = model["outputs"][0]
    return NamedTensor(output["name"], output["datatype"], result.array)


def _deliver(results: list[NamedTensor], wanted: dict[str, str]) -> None:
    import numpy as np

    from app.cli.tensors import text_of
    from app.spec import notation

    names = [result.name for result in results]
    for name in wanted:
        if name not in names:
            msg = f"no output {name!r}; there are {', '.join(names)}"
            raise CommandError(msg, EXIT_USAGE)
    for result in results:
        head = f"{result.name}  {notation(result.datatype, result.shape)}"
        if result.name in wanted:
            target = Path(wanted[result.name])
            array = result.array
            if result.datatype == "BYTES":
                array = array.astype(np.bytes_)
            try:
                with target.open("wb") as file:
                    np.save(file, array, allow_pickle=False)
            except OSError as e:
                raise CommandError(f"{target}: {e.strerror}") from None
            typer.echo(f"{head} → {target}")
        else:
            typer.echo(head)
            typer.echo(text_of(result))
