"""Serve Magika, Google's file type model, as its PyPI package ships it.

    pip install '.[examples]'
    python examples/file_types.py [FILE ...]       # default: files of this folder

The package brings an ONNX file and its own Python code to run it. Here the gateway
runs the file instead, and its answers are compared with the package's own. The exit
status is 1 if they differ. Magika is licensed under Apache-2.0.

What the model sees of a file (Magika's features, version 2): its first 1,024 and its
last 1,024 bytes as numbers, without the white space at both ends; 256 where the file
is shorter.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
import magika
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from serving import serve

HERE = Path(__file__).parent
BLOCK, KEPT, PADDING = 4096, 1024, 256
SMALLEST = 8  # bytes; below that the package answers without its model
TOLERANCE = 1e-5  # of a score; the gateway may run other batch sizes than the package


def shipped_model() -> tuple[Path, Sequence[str]]:
    """Return the ONNX file inside the installed package, and its classes' names."""
    folder = Path(magika.__file__).parent / "models" / magika.Magika().get_model_name()
    config = json.loads((folder / "config.min.json").read_text())
    labels: Sequence[str] = config["target_labels_space"]
    return folder / "model.onnx", labels


def features(content: bytes) -> NDArray[np.int32]:
    """Return what the model sees of a file: int32 ``[2048]``."""
    seen = np.full(2 * KEPT, PADDING, np.int32)
    first = content[:BLOCK].lstrip()[:KEPT]
    last = content[-BLOCK:].rstrip()[-KEPT:]
    seen[: len(first)] = np.frombuffer(first, np.uint8)
    seen[len(seen) - len(last) :] = np.frombuffer(last, np.uint8)
    return seen


def ask(url: str, files: Mapping[Path, bytes]) -> NDArray[np.float32]:
    """Post all files in one request; return float32 ``[files, classes]``."""
    rows = np.stack([features(content) for content in files.values()])
    response = httpx.post(
        f"{url}/v1/models/magika/infer", json={"inputs": {"bytes": rows.tolist()}}
    )
    response.raise_for_status()
    (output,) = response.json()["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Recognise file types with Magika.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    paths: list[Path] = parser.parse_args().files or default_files()
    files = {path: path.read_bytes() for path in paths}
    files = {
        path: content
        for path, content in files.items()
        if features(content)[SMALLEST - 1] != PADDING
    }
    if not files:
        print("no file of 8 bytes or more given", file=sys.stderr)
        return 2

    onnx_file, labels = shipped_model()
    with serve({"magika": onnx_file}) as url:
        scores = ask(url, files)

    package = magika.Magika()
    table = Table("File", "Gateway", "Score", "Package", "Score", "")
    different = 0
    for path, content, row in zip(files, files.values(), scores, strict=True):
        label, score = labels[int(row.argmax())], float(row.max())
        own = package.identify_bytes(content).prediction
        same = label == own.dl.label and abs(score - own.score) <= TOLERANCE
        different += not same
        sign = "[green]same" if same else "[red]different"
        table.add_row(
            path.name, label, f"{score:.4f}", own.dl.label, f"{own.score:.4f}", sign
        )
    Console().print(table)
    return 1 if different else 0


def default_files() -> list[Path]:
    folders = (HERE, HERE / "digits")
    return [path for folder in folders for path in sorted(folder.glob("*.*"))]


if __name__ == "__main__":
    sys.exit(main())
