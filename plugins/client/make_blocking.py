"""Make the blocking client of `popgate_client` from the client for event loops.

    python plugins/client/make_blocking.py

The two differ in the words below and in nothing else. unasync has a table for this,
too, but leaves docstrings as they are, and their examples would await.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "src" / "popgate_client"
SOURCE, MADE = FOLDER / "async_client.py", FOLDER / "client.py"
HEAD = '"""The blocking client. `make_blocking.py` makes it from `async_client.py`."""'
#: A pattern, and what takes its place, in this order.
WORDS = (
    (r'\A""".*?"""', HEAD),
    (r"\bimport asyncio\n", ""),
    (r"\bimport os\n", "import os\nimport time\n"),
    (r"\basyncio\.sleep\b", "time.sleep"),
    (r"\(await ([^()]*\([^()]*\))\)", r"\1"),
    (r"\b(async|await) ", ""),
    (r"\b_?async_connections\b", "connections"),
    (r"\b(web\.\w+)_async\b", r"\1"),
    (r"\bnew_async_client\b", "new_client"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\baclose\b", "close"),
)


def blocking(source: str) -> str:
    """Return the blocking form of a source text, as ruff formats it."""
    for pattern, word in WORDS:
        source = re.sub(pattern, word, source, flags=re.DOTALL)
    for command in (("check", "--fix", "--unsafe-fixes", "--select=I,UP"), ("format",)):
        words = [sys.executable, "-m", "ruff", *command, "--quiet"]
        words += ["--stdin-filename", str(MADE), "-"]
        made = subprocess.run(
            words, input=source, capture_output=True, text=True, check=True
        )
        source = made.stdout
    return source


if __name__ == "__main__":
    MADE.write_text(blocking(SOURCE.read_text()))
