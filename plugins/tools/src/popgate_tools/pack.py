"""`popgate pack`: write a folder with a short `model.py` around a file of another
library.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.errors import EXIT_USAGE, CommandError
from popgate_tools.pack_sklearn import sklearn
from popgate_tools.packed import COLUMNS, NUMBERS, Packed, X, library, quoted, table_of

_TEXTS = "[text.decode() for text in {}]"


def xgboost(file: Path) -> Packed:
    """Boosters that xgboost has saved as JSON or UBJSON."""
    xgb = library("xgboost")
    model = xgb.Booster(model_file=str(file))
    columns = model.num_features()
    # The columns of a matrix have no names, as those of a DataFrame had.
    found = model.predict(xgb.DMatrix(_row(columns)), validate_features=False)
    # An estimator of scikit-learn uses the rounds up to the best one.
    best = model.attr("best_iteration") if model.attr("scikit_learn") else None
    rounds = f", iteration_range=(0, {int(best) + 1})" if best else ""
    given = f"xgboost.DMatrix({X}), validate_features=False{rounds}"
    return Packed(
        "import xgboost",
        "self.model = xgboost.Booster(model_file=str(file))",
        f'return {{"output": self.model.predict({given})}}',
        {X: f"FP32[-1,{columns}]"},
        {"output": _of_rows(found, "FP32")},
        ("xgboost",),
    )


def lightgbm(file: Path) -> Packed:
    """Boosters that lightgbm has saved as text."""
    model = library("lightgbm").Booster(model_file=str(file))
    columns = model.num_feature()
    return Packed(
        "import lightgbm",
        "self.model = lightgbm.Booster(model_file=str(file))",
        f'return {{"output": self.model.predict({X})}}',
        {X: f"FP64[-1,{columns}]"},
        {"output": _of_rows(model.predict(_row(columns)), "FP64")},
        ("lightgbm",),
    )


def torch(file: Path) -> Packed:
    """Programs that `torch.export.save` has written."""
    program = library("torch").export.load(str(file))
    taken = set(program.graph_signature.user_inputs)
    inputs, outputs = {}, {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in taken:
            inputs[node.name] = _of_torch(node.meta["val"])
        if node.op == "output":
            for number, each in enumerate(node.args[0]):
                outputs[f"output{number}" if number else "output"] = _of_torch(
                    each.meta["val"]
                )
    free = all("[-1" in text for text in (*inputs.values(), *outputs.values()))
    arrays = ", ".join(f"torch.from_numpy({name}.copy())" for name in inputs)
    names = ", ".join(f'"{name}"' for name in outputs)
    return Packed(
        "import torch",
        "torch.set_num_threads(context.threads)\n"
        "        self.model = torch.export.load(str(file)).module()",
        f"with torch.inference_mode():\n            found = self.model({arrays})\n"
        "        found = found if isinstance(found, (list, tuple)) else [found]\n"
        f"        names = [{names}]\n"
        "        return {n: t.numpy() for n, t in zip(names, found, strict=True)}",
        inputs,
        outputs,
        ("torch",),
        is_code=True,
        batching=free,
    )


def mlflow(file: Path) -> Packed:
    """Folders of MLflow models, by their `pyfunc` flavour and signature: columns, or
    one tensor, to one output."""
    model = library("mlflow.pyfunc", "mlflow pandas").load_model(str(file))
    given, taken = model.metadata.get_output_schema(), model.metadata.get_input_schema()
    if taken is None:
        raise CommandError(
            f"{file} has no signature; log the model with one "
            "(mlflow.models.infer_signature)",
            EXIT_USAGE,
        )
    if taken.is_tensor_spec():
        if len(taken.inputs) != 1:
            raise CommandError(
                f"{file} takes several tensors; popgate pack supports one tensor, "
                "or columns",
                EXIT_USAGE,
            )
        inputs, value = {X: _of_mlflow(taken.inputs[0])}, X
    else:
        if not all(taken.input_names()):
            raise CommandError(
                f"{file} has columns without names; name all columns of its signature",
                EXIT_USAGE,
            )
        inputs = {c.name: _of_mlflow(c) for c in taken.inputs}
        columns = [
            f"{quoted(n)}: "
            + (_TEXTS if k[:5] == "BYTES" else "{}").format(f"columns[{quoted(n)}]")
            for n, k in inputs.items()
        ]
        value = f"pd.DataFrame({{{', '.join(columns)}}})"
    outputs = {"output": "FP64[-1]"}
    if given is not None:
        if len(given.inputs) != 1:
            raise CommandError(
                f"{file} has several outputs; popgate pack supports one", EXIT_USAGE
            )
        outputs = {"output": _of_mlflow(given.inputs[0])}
    kind, _, dims = outputs["output"].partition("[")
    made = {name: number for number, name in NUMBERS.items()}.get(kind, "object")
    shape = "" if "," in dims else ".reshape(-1)"
    return Packed(
        "import mlflow.pyfunc\nimport numpy as np\nimport pandas as pd",
        "self.model = mlflow.pyfunc.load_model(str(file))",
        f"found = self.model.predict({value})\n"
        f'        return {{"output": np.asarray(found, "{made}"){shape}}}',
        inputs,
        outputs,
        ("mlflow", "pandas"),
        is_code=True,
        takes_columns=not taken.is_tensor_spec(),
    )


KINDS: Mapping[str, Callable[[Path], Packed]] = {
    each.__name__: each for each in (sklearn, xgboost, lightgbm, torch, mlflow)
}


def pack(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.")
    ],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The file or folder that the library saved."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="Folder for the model. [default: models/ and FILE's name]",
        ),
    ] = None,
    sample: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For sklearn: rows of the DataFrame that the pipeline was fitted "
            "on (.csv, .parquet, .jsonl). They give the inputs their types.",
        ),
    ] = None,
) -> None:
    """Make a model in Python from a file of another library.

    The command loads the file to find its inputs. Loading a joblib or pickle file, an
    exported program or an MLflow folder runs code in it, so use only files that you
    trust.
    """
    make = KINDS.get(kind)
    if make is None:
        kinds = ", ".join(KINDS)
        raise CommandError(
            f"KIND {kind!r} is unknown; expected one of {kinds}", EXIT_USAGE
        )
    if not file.exists():
        raise CommandError(f"{file}: no such file", EXIT_USAGE)
    if sample is not None and kind != "sklearn":
        raise CommandError(
            f"--sample is for sklearn only; leave it out for {kind}", EXIT_USAGE
        )
    folder = out or Path("models") / file.stem
    version = folder / "1"
    if (version / "model.py").exists():
        raise CommandError(
            f"{version / 'model.py'} exists already; remove it, or name another "
            "folder with --out",
            EXIT_USAGE,
        )
    try:
        made = make(file) if sample is None else sklearn(file, sample)
    except CommandError:
        raise
    except Exception as error:  # any error of the library, or of code in the file
        text = f"{type(error).__name__}: {error}"
        raise CommandError(
            f"{file} cannot be loaded as a model of {kind}: {text}"
        ) from None
    version.mkdir(parents=True, exist_ok=True)
    if file.is_dir():
        shutil.copytree(file, version / file.name)
    else:
        shutil.copy(file, version / file.name)
    # Name the installed distribution: xgboost may be installed as xgboost-cpu.
    known = packages_distributions()
    names = [known.get(module, [module])[0] for module in made.requires]
    (folder / "config.toml").write_text(made.config(names), encoding="utf-8")
    text = made.source(kind, file.name)
    (version / "model.py").write_text(text, encoding="utf-8")
    typer.echo(f"{version / 'model.py'}: {table_of(made.inputs)} to")
    typer.echo(f"  {table_of(made.outputs)}; serve it with --allow-python")
    for note in made.notes:
        typer.echo(f"  {note}")


def _row(columns: int) -> Any:
    import numpy as np

    return np.zeros((1, columns), np.float32)


def _of_rows(found: Any, kind: str) -> str:
    dims = ",".join(map(str, (-1, *found.shape[1:])))
    return f"{kind}[{dims}]"


def _of_mlflow(spec: Any) -> str:
    """Return the type of a column, or of a tensor, of a signature."""
    shape = getattr(spec, "shape", (-1,))
    name = getattr(spec.type, "name", str(spec.type))
    kind = (NUMBERS if hasattr(spec, "shape") else COLUMNS).get(name)
    if kind is None:
        raise CommandError(
            f"the type of {spec} has no datatype in the Open Inference Protocol",
            EXIT_USAGE,
        )
    return f"{kind}[{','.join(map(str, shape))}]"


def _of_torch(value: Any) -> str:
    kind = NUMBERS.get(str(value.dtype).removeprefix("torch."))
    if kind is None:
        raise CommandError(
            f"tensors of {value.dtype} have no datatype in the Open Inference Protocol"
        )
    dims = ",".join(str(d) if isinstance(d, int) else "-1" for d in value.shape)
    return f"{kind}[{dims}]"
