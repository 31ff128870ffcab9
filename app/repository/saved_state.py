"""``save_outputs`` of a model's ``config.toml``: the place for its state at unload.

The save programs of each replica run when a model is unloaded, replaced or the gateway
stops. Their outputs become files

    <save_outputs>/<version>/<replica>/<tensor>.npy

Each file is written beside its place and renamed over it. Names of tensors are quoted
as in URLs, so none leads outside the folder.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from urllib.parse import quote

import numpy as np

from engine import Array, EngineError, ModelRunner

logger = logging.getLogger(__name__)


def save_state(runner: ModelRunner, folder: Path, version: str) -> None:
    """Run the save programs of every replica and write their outputs. Blocks.

    Errors are logged: the model is unloaded in any case.
    """
    for replica in range(len(runner.devices)):
        place = folder / version / str(replica)
        try:
            saved = runner.run_save_programs(replica)
            for name, array in saved.items():
                _write(place / f"{quote(name, safe='')}.npy", name, array)
        except (EngineError, OSError, ValueError, MemoryError) as e:
            logger.error("cannot save the state of %s: %s", runner.name, e)
        else:
            if saved:
                logger.info("saved the state of %s in %s", runner.name, place)


def _write(path: Path, name: str, array: Array) -> None:
    if array.dtype.hasobject:
        if any(item.endswith(b"\0") for item in array.flat):
            raise ValueError(f"{name!r} has strings that end in a zero byte")
        # Objects would be pickled. Byte strings are padded with zeros to one length.
        array = array.astype(np.bytes_)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            np.save(file, array, allow_pickle=False)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
