"""Write `config.toml` with new values; all other text of the file is kept."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

_TABLE = re.compile(r"^\s*\[", re.MULTILINE)
_MARK = "# tuned by popgate:"


def with_values(text: str, values: Mapping[str, int | float], said: str) -> str:
    """Return `text` with these keys, as its first lines, below a comment.

    Raises ValueError if the text is not TOML, or a key of it cannot be replaced.
    """
    before = tomllib.loads(text)
    table = _TABLE.search(text)
    end = table.start() if table else len(text)
    kept = [
        line
        for line in text[:end].splitlines(keepends=True)
        if line.partition("=")[0].strip() not in values and not line.startswith(_MARK)
    ]
    lines = [f"{_MARK} {said}\n", *(f"{k} = {v}\n" for k, v in values.items())]
    made = "".join([*lines, *kept, text[end:]])
    try:
        same = tomllib.loads(made) == {**before, **values}
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        keys = ", ".join(values)
        raise ValueError(
            f"one of the keys {keys} cannot be replaced as it is written; remove "
            "it from the file"
        )
    return made
