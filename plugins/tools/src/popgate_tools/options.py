"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Rows = Annotated[int, typer.Option("--batch", "-b", min=1, help="Rows of a request.")]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", "-i", metavar="NAME=VALUE",
                 help="An input, as for `popgate infer`. [default: a synthetic one]"),
]  # fmt: skip
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="NAME=DIMS", help="Shape of a synthetic input."),
]
AllowPython = Annotated[
    bool,
    typer.Option(
        "--allow-python", help="Run models that are Python code, as for serve."
    ),
]
Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE", help=
        "A PopEF file, all files of one model, or an ONNX file, which is compiled "
        "first."),
]  # fmt: skip
Seed = Annotated[
    int, typer.Option(metavar="N", min=0, help="Seed for generated inputs.")
]
Executable = Annotated[
    str,
    typer.Option(metavar="NAME", help="Name of the model, if the file has several."),
]
