"""`popgate dump`: what is in a PopEF file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.errors import CommandError


def dump(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="One file, or all files of one model."),
    ],
    metadata_only: Annotated[
        bool, typer.Option("-m", "--metadata", help="Show only the metadata, no blobs.")
    ] = False,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Show everything: options, all anchors, checksums."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also verify the payloads' checksums.")
    ] = False,
) -> None:
    """Show what is in a PopEF file: blobs, anchors, programs, options."""
    from popef_io import PopefError, Reader
    from popgate_admin.popef_dump import dump_document, dump_text
    from popgate_admin.table import json_text

    reader = Reader()
    try:
        for path in files:
            reader.parse_file(path)
        if verify:
            reader.verify()
        if json:
            document = dump_document(
                reader, metadata_only=metadata_only, all=everything
            )
            text = json_text(document) + "\n"
        else:
            text = dump_text(reader, metadata_only=metadata_only, all=everything)
    except PopefError as e:
        raise CommandError(str(e)) from None
    except OSError as e:
        raise CommandError(f"{e.filename}: {e.strerror}") from None
    finally:
        reader.close()
    typer.echo(text, nl=False)
