"""Changes that a configuration makes to an ONNX model before it is compiled."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.config.reshape import Reshapes


@dataclass(frozen=True, slots=True)
class GraphChanges:
    """Changes to a model. `repr` is complete and stable: part of a cache key.

    If `counts_rows` is true, the first dimension of every input is declared to be the
    batch, even if the file does not say so. `optional` are inputs that remain inputs
    although the file has values for them (initializers). `format` is the plugin that
    changes the graph (`app.repository.formats`), by the JSON document `recipe`.
    `ragged` are inputs whose rows may have any length, with their padding values. The
    compiler checks that.
    """

    reshapes: Reshapes = field(default_factory=Reshapes)
    counts_rows: bool = False
    optional: tuple[str, ...] = ()
    format: str = ""
    recipe: str = ""
    ragged: tuple[tuple[str, float], ...] = ()
