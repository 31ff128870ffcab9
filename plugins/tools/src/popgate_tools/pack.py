"""`popgate pack`: a folder with a short `model.py` around a file of another library."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.errors import EXIT_USAGE, CommandError

#: The name of the input of models that take one matrix.
X = "x"
_NUMBERS = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}
#: Types of columns, as MLflow names them.
_COLUMNS = {
    "boolean": "BOOL",
    "integer": "INT32",
    "long": "INT64",
    "float": "FP32",
    "double": "FP64",
    "string": "BYTES",
}


@dataclass(frozen=True)
class Packed:
    """Parts of a `model.py`: how it imports and loads, and what a call does; `requires`
    are modules.
    """

    imports: str
    load: str
    call: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    requires: tuple[str, ...]
    is_code: bool = False
    batching: bool = True
    notes: tuple[str, ...] = field(default=())

    def source(self, kind: str, file: str) -> str:
        """Return the text of `model.py`."""
        trust = ""
        if self.is_code:
            trust = "        # Loading runs what it says: trust it like this one.\n"
        names = ", ".join(self.inputs)
        return (
            f'"""{file}, served. Made by `popgate pack {kind}`; yours to edit."""\n\n'
            f"{self.imports}\n\n\nclass Packed:\n"
            f"    inputs = {_table(self.inputs)}\n"
            f"    outputs = {_table(self.outputs)}\n"
            f"    batching = {self.batching}  # rows do not depend on each other\n\n"
            f"    def load(self, context):\n{trust}"
            f"        file = context.folder / {file!r}\n        {self.load}\n\n"
            f"    def __call__(self, {names}):\n        {self.call}\n"
        )


def _table(tensors: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'"{k}": "{v}"' for k, v in tensors.items()) + "}"


def sklearn(file: Path) -> Packed:
    """Estimators and pipelines that joblib or pickle has written."""
    model = _library("joblib", "sklearn").load(file)
    first = model[0] if hasattr(model, "steps") else model
    texts = hasattr(first, "analyzer")  # a vectorizer
    columns = getattr(model, "n_features_in_", -1)
    inputs = {"text": "BYTES[-1]"} if texts else {X: f"FP64[-1,{columns}]"}
    outputs = {"output": "FP64[-1]"}
    given = "[each.decode() for each in text]" if texts else X
    call = f'return {{"output": self.model.predict({given})}}'
    classes = getattr(model, "classes_", None)
    if classes is not None:
        number = _NUMBERS.get(str(classes.dtype))
        outputs = {"label": f"{number or 'BYTES'}[-1]"}
        labels = f"self.model.predict({given})"
        if number is None:
            labels = f"{labels}.astype(object)"
        call = f'return {{"label": {labels}}}'
        if hasattr(model, "predict_proba"):
            outputs["probabilities"] = f"FP64[-1,{len(classes)}]"
            call = (
                f"rows = {given}\n        return {{\n"
                f'            "label": {labels.replace(given, "rows")},\n'
                '            "probabilities": self.model.predict_proba(rows),\n'
                "        }"
            )
    return Packed(
        "import joblib",
        "self.model = joblib.load(file)",
        call,
        inputs,
        outputs,
        ("sklearn", "joblib"),
        is_code=True,
    )


def xgboost(file: Path) -> Packed:
    """Boosters that xgboost has saved as JSON or UBJSON."""
    library = _library("xgboost", "xgboost")
    model = library.Booster(model_file=str(file))
    columns = model.num_features()
    sample = _row(columns)
    found = model.predict(library.DMatrix(sample))
    return Packed(
        "import xgboost",
        "self.model = xgboost.Booster(model_file=str(file))",
        f'return {{"output": self.model.predict(xgboost.DMatrix({X}))}}',
        {X: f"FP32[-1,{columns}]"},
        {"output": _of_rows(found, "FP32")},
        ("xgboost",),
    )


def lightgbm(file: Path) -> Packed:
    """Boosters that lightgbm has saved as text."""
    model = _library("lightgbm", "lightgbm").Booster(model_file=str(file))
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
    program = _library("torch", "torch").export.load(str(file))
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
    model = _library("mlflow.pyfunc", "mlflow").load_model(str(file))
    given, taken = model.metadata.get_output_schema(), model.metadata.get_input_schema()
    if taken is None:
        raise CommandError(f"{file} has no signature", EXIT_USAGE)
    if taken.is_tensor_spec():
        if len(taken.inputs) != 1:
            raise CommandError(f"{file} takes several tensors, not one", EXIT_USAGE)
        inputs, value = {X: _of_mlflow(taken.inputs[0])}, X
    else:
        if not all(taken.input_names()):
            raise CommandError(f"{file} has columns without names", EXIT_USAGE)
        inputs = {c.name: _of_mlflow(c) for c in taken.inputs}
        columns = ", ".join(
            f'"{n}": ' + (f"[t.decode() for t in {n}]" if k[:5] == "BYTES" else n)
            for n, k in inputs.items()
        )
        value = f"pd.DataFrame({{{columns}}})"
    outputs = {"output": "FP64[-1]"}
    if given is not None:
        if len(given.inputs) != 1:
            raise CommandError(f"{file} has several outputs, not one", EXIT_USAGE)
        outputs = {"output": _of_mlflow(given.inputs[0])}
    kind, _, dims = outputs["output"].partition("[")
    made = {name: number for number, name in _NUMBERS.items()}.get(kind, "object")
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
    )


KINDS: Mapping[str, Callable[[Path], Packed]] = {
    each.__name__: each for each in (sklearn, xgboost, lightgbm, torch, mlflow)
}


def pack(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.")
    ],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What the library has saved.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="The model's folder; else models/ and FILE's name."
        ),
    ] = None,
) -> None:
    """Make a model in Python from a file of another library.

    The file is loaded here to see what it takes. Loading a joblib or pickle file, an
    exported program or an MLflow folder runs what it says: trust it like code.
    """
    make = KINDS.get(kind)
    if make is None:
        kinds = ", ".join(KINDS)
        raise CommandError(f"there is no kind {kind!r}; there are {kinds}", EXIT_USAGE)
    if not file.exists():
        raise CommandError(f"{file}: no such file", EXIT_USAGE)
    folder = out or Path("models") / file.stem
    version = folder / "1"
    if (version / "model.py").exists():
        raise CommandError(f"{version / 'model.py'} is there already", EXIT_USAGE)
    try:
        made = make(file)
    except CommandError:
        raise
    except Exception as error:  # of the library, or of what the file runs
        text = f"{type(error).__name__}: {error}"
        raise CommandError(f"{file} is no model of {kind}: {text}") from None
    version.mkdir(parents=True, exist_ok=True)
    if file.is_dir():
        shutil.copytree(file, version / file.name)
    else:
        shutil.copy(file, version / file.name)
    # As what is installed here is called: xgboost comes as xgboost-cpu too.
    known = packages_distributions()
    names = [known.get(module, [module])[0] for module in made.requires]
    wanted = ", ".join(f'"{name}"' for name in names)
    (folder / "config.toml").write_text(f"requirements = [{wanted}]\n")
    (version / "model.py").write_text(made.source(kind, file.name))
    typer.echo(f"{version / 'model.py'}: {_table(made.inputs)} to")
    typer.echo(f"  {_table(made.outputs)}; serve it with --allow-python")


def _library(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise CommandError(
            f"{error}; pip install 'popgate[{extra}]' brings it"
        ) from None


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
    kind = (_NUMBERS if hasattr(spec, "shape") else _COLUMNS).get(name)
    if kind is None:
        raise CommandError(f"there is no name for {spec}", EXIT_USAGE)
    return f"{kind}[{','.join(map(str, shape))}]"


def _of_torch(value: Any) -> str:
    kind = _NUMBERS.get(str(value.dtype).removeprefix("torch."))
    if kind is None:
        raise CommandError(f"there is no name for tensors of {value.dtype}")
    dims = ",".join(str(d) if isinstance(d, int) else "-1" for d in value.shape)
    return f"{kind}[{dims}]"
