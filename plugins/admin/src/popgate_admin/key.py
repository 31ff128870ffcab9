"""`popgate key`: a key for a server's clients."""

from __future__ import annotations

import json
import secrets
from typing import Annotated

import typer

from app.cli.errors import EXIT_USAGE, CommandError


def key(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name of the key, for example its owner's."
        ),
    ],
    groups: Annotated[
        str,
        typer.Option(
            metavar="GROUPS",
            help="Groups of calls that the key allows, separated by commas.",
        ),
    ] = "infer,metadata",
    models: Annotated[
        str,
        typer.Option(
            metavar="MODELS", help="Models that the key allows, as in digits,r-*."
        ),
    ] = "*",
) -> None:
    """Make a key for a client of the server.

    The entry for the file of `popgate serve --keys` goes to standard output. The key
    itself goes to standard error. It is shown only once, because the file contains only
    a digest.

    For example: popgate key shop --models digits >> keys.toml
    """
    from app.config.config_keys import KeyProblem, read_section
    from app.config.keys import KeyConfig, digest_of

    secret = "pg_" + secrets.token_urlsafe(32)
    entry = {
        "name": name,
        "sha256": digest_of(secret.encode()).hex(),
        "groups": [group.strip() for group in groups.split(",") if group.strip()],
        "models": [model.strip() for model in models.split(",") if model.strip()],
    }
    try:
        read_section(KeyConfig, entry)
    except KeyProblem as e:
        raise CommandError(str(e), EXIT_USAGE) from None
    typer.echo("\n[[key]]")
    for item, value in entry.items():
        # JSON's strings and lists are valid TOML as well.
        typer.echo(f"{item} = {json.dumps(value)}")
    typer.echo(f"the key of {name}, which is shown only once: {secret}", err=True)
