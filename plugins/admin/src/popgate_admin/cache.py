"""`popgate cache`: the disk space of compiled and downloaded models."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.errors import EXIT_USAGE, CommandError

if TYPE_CHECKING:
    from app.repository.model_sources import Cached

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"(\d{1,9})([smhdw])")


def cache(
    empty: Annotated[
        bool,
        typer.Option("--empty", help="Remove the listed entries that are not in use."),
    ] = False,
    older_than: Annotated[
        str,
        typer.Option(
            metavar="AGE",
            help="List only entries that were unused for at least this long: 12h, "
            "30d, 8w.",
        ),
    ] = "",
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="POPGATE_CACHE_DIR",
            show_envvar=False,
            help="The --cache-dir of popgate serve. [default: ~/.cache/popgate]",
        ),
    ] = None,
    model_cache: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="POPGATE_MODEL_CACHE",
            show_envvar=False,
            help="The --model-cache of popgate serve. [default: the folder models "
            "of --cache-dir]",
        ),
    ] = None,
) -> None:
    """List the files that the cache keeps, or remove them.

    Emptying the cache is safe while servers run, because they keep their open files and
    their downloads. A model that is loaded later is compiled or downloaded again.

    For example:

    popgate cache --empty --older-than 30d
    """
    from app.settings import default_cache_dir
    from app.sizes import size_text
    from popgate_admin.cache_contents import CacheContents

    seconds = _seconds(older_than) if older_than else 0.0
    folder = cache_dir or default_cache_dir()
    contents = CacheContents(folder, model_cache or folder / "models")
    now = time.time()
    found = [each for each in contents.listed() if now - each.used >= seconds]
    gone = [each for each in found if empty and contents.remove(each)]
    if empty:
        contents.sweep()
    for each in found:
        said = ["removed"] if each in gone else ["in use"] if each.in_use else []
        typer.echo("  ".join((*_columns(each, now), *said)))
    size = size_text(sum(each.size for each in (gone if empty else found)))
    count = f"{len(gone)} of {len(found)}" if empty else str(len(found))
    typer.echo(f"{folder}: {'removed ' if empty else ''}{count}, {size}")


def _columns(each: Cached, now: float) -> tuple[str, ...]:
    from app.sizes import size_text

    age = f"{_age(max(now - each.used, 0))} ago"
    return f"{each.kind:10}", f"{size_text(each.size):>9}", f"{age:>9}", each.name


def _age(seconds: float) -> str:
    """Return an age in the largest unit that fits: ``3d``."""
    unit = max((u for u in "smhd" if seconds >= _UNITS[u]), key=_UNITS.__getitem__,
               default="s")  # fmt: skip
    return f"{int(seconds // _UNITS[unit])}{unit}"


def _seconds(text: str) -> float:
    match = _AGE.fullmatch(text.strip())
    if match is None:
        msg = f"--older-than {text}: expected a number and s, m, h, d or w, as in 30d"
        raise CommandError(msg, EXIT_USAGE)
    return float(int(match[1]) * _UNITS[match[2]])
