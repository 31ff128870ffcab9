"""The command: chooses the model, starts its server, and writes the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from app.cli.errors import EXIT_INTERRUPTED, EXIT_USAGE, CommandError
from popgate_tools.asking.option_groups import grouped
from popgate_tools.asking.server import Server
from popgate_tools.options import AllowPython, Inputs, Rows, Shapes

if TYPE_CHECKING:
    from popgate_tools.tune.server import Tuned


@dataclass(frozen=True, slots=True)
class RunningServerOptions(Server):
    """The server whose model is tuned, if the command does not start one."""

    url: Annotated[
        str,
        typer.Option(help=
            "Tune a model of this running server instead. No other client should use "
            "it meanwhile.", rich_help_panel="Server"),
    ] = ""  # fmt: skip


_DURATION = re.compile(r"(\d+(?:\.\d+)?) *(us|µs|ms|s)")
_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


@grouped
def tune(
    model: Annotated[
        str,
        typer.Argument(help=
            "A model in --model-repository, an .onnx or .popef file, or the folder of "
            "one model. With --url, the name of a model of that server."),
    ],
    p99: Annotated[
        str, typer.Option(metavar="TIME", help=
            "The latency to keep for 99 of 100 requests, as in 10ms, 500us, 2s.")
    ],
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE|-",
                     help="Where to write the config.toml; - is standard output. "
                     "[default: that of the model's folder, or standard output]"),
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help=
            "Change an existing config.toml. Other keys in it are kept.")
    ] = False,
    budget: Annotated[
        float, typer.Option("--time", metavar="SECONDS", min=0.1,
                            help="Time limit of the search.")
    ] = 120.0,
    seconds: Annotated[
        float, typer.Option(min=0.05, help="How long to measure each load.")
    ] = 1.0,
    repository: Annotated[
        Path, typer.Option("--model-repository", "-m", metavar="DIR",
                           help="Folder with the models.")
    ] = Path("models"),
    batch: Rows = 1,
    inputs: Inputs = None,
    shapes: Shapes = None,
    allow_python: AllowPython = False,
    *,
    running: RunningServerOptions,
) -> None:  # fmt: skip
    """Find the settings for the most throughput within a latency.

    The command starts a server with the model and tries instances, devices (and so
    threads), batch sizes and queue delays under growing load. Then it writes the best
    settings to config.toml. The search begins with the settings of an existing file.

    For example: popgate tune digits --p99 10ms
    """
    from popgate_tools.tune.search import BETTER
    from popgate_tools.tune.trials import Trials

    bound = _duration(p99)
    url = running.url
    place = _place(model, repository, url)
    target = _target(output, place, force=force)
    text = target.read_text(encoding="utf-8") if target and target.exists() else ""
    # With the file on standard output, messages go to standard error.
    tell = partial(typer.echo, err=target is None)
    with (
        _interrupted(),
        running.errors(),
        closing(_server(place, running, allow_python)) as server,
    ):
        trials = Trials(server, place.name, bound, seconds, budget, tell)
        with closing(trials):
            start = trials.prepare(inputs, shapes, batch)
            found = trials.search(start, [start.devices] if url else _device_counts())
            best = found.best
            if not best.fits:
                raise CommandError(
                    f"{place.name} cannot keep --p99 {p99}: one request at a "
                    f"time takes {best.best.latency * 1e3:.3g} ms (p99)"
                )
            gain = trials.gain(found) if best is not found.first else 1.0
    if gain < BETTER:
        tell(f"{trials.count} settings tried: none is better than the current one")
        return
    said = f"{best.rate:.0f} requests/s, p99 within {p99}"
    tell(f"{trials.count} settings tried: x{gain:.2f} the current throughput; {said}")
    _write(text, trials.changes(found), said, target)
    if best.setting.devices > 1:
        tell(f"serve it with --devices cpu:{best.setting.devices}")


class _Place(NamedTuple):
    """A model's name, the folder of its config.toml, and the options that make serve
    load it.
    """

    name: str
    folder: Path | None
    options: list[str]


def _write(
    text: str, changes: Mapping[str, float], said: str, target: Path | None
) -> None:
    """Write the config.toml `text` with the changes; None: to standard output."""
    from popgate_tools.tune.config_file import with_values

    try:
        made = with_values(text, changes, said)
    except ValueError as e:
        raise CommandError(f"{target}: {e}") from None
    if target is None:
        typer.echo(made, nl=False)
        return
    target.parent.mkdir(exist_ok=True)
    target.write_text(made, encoding="utf-8")
    typer.echo(f"written to {target}")


@contextmanager
def _interrupted() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _duration(text: str) -> float:
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not seconds:
        msg = f"--p99 {text}: expected a time with its unit, as in 10ms, 500us, 2s"
        raise CommandError(msg, EXIT_USAGE)
    return seconds


def _place(model: str, repository: Path, url: str) -> _Place:
    from app.repository.places import ModelPlaces, is_one_model
    from engine import InvalidConfig

    if url:
        return _Place(model, None, [])
    path = Path(model)
    try:
        if path.exists():
            (name,) = ModelPlaces.of(None, [model]).named
            if path.is_dir() and not is_one_model(path):
                msg = (
                    f"{model} holds several models; name one of them, and the "
                    f"folder with -m {model}"
                )
                raise CommandError(msg, EXIT_USAGE)
            folder = path if path.is_dir() else None
            return _Place(name, folder, ["--model", f"{name}={path}"])
        names = ModelPlaces.of(repository, []).names() if repository.is_dir() else []
    except InvalidConfig as e:
        raise CommandError(str(e), EXIT_USAGE) from None
    if model not in names:
        there = f", whose models are {', '.join(names)}" if names else ""
        msg = (
            f"no model {model!r}, neither as a file nor in --model-repository "
            f"{repository}{there}"
        )
        raise CommandError(msg, EXIT_USAGE)
    only = ["--model-control-mode", "explicit", "--load-model", model]
    options = ["--model-repository", str(repository), *only]
    return _Place(model, repository / model, options)


def _target(output: str, place: _Place, *, force: bool) -> Path | None:
    """Return the file to write; None for standard output."""
    if output == "-" or (not output and place.folder is None):
        return None
    target = Path(output) if output else (place.folder or Path()) / "config.toml"
    if target.exists() and not force:
        msg = (
            f"{target} exists already; --force changes its settings and keeps "
            "the rest, -o - writes to standard output"
        )
        raise CommandError(msg, EXIT_USAGE)
    if output and not target.parent.is_dir():
        raise CommandError(f"{target}: no such folder", EXIT_USAGE)
    return target


def _server(place: _Place, running: RunningServerOptions, allow_python: bool) -> Tuned:
    from popgate_tools.tune.server import OwnServer, RunningServer

    if not running.url:
        more = ["--allow-python"] if allow_python else []
        return OwnServer(place.name, [*place.options, *more])
    client = running.client(timeout=60)
    return RunningServer(client, place.name, running.context())


def _device_counts() -> Sequence[int]:
    """Return powers of two up to the number of cores."""
    from engine import usable_cores

    return [2**n for n in range(usable_cores().bit_length())]
