"""Every block of README and docs does what it says; `reader.py` says how."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.served import ROOT, ServedGateway
from tests.docs.reader import NOT_RUN, Block, Reader, Servers, commands, read_blocks

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "examples/*.md",
        "bench/*.md",
        "deploy/*.md",
    )
    for path in ROOT.glob(pattern)
)
#: Pages that tests/docs/test_paths.py follows, with more checks.
FOLLOWED = {"docs/how-to/send-files.md", "docs/tutorials/python-model.md"}
#: Packages that are not installed with the rest, and the page whose blocks behind a
#: heading need them.
NEEDS: dict[str, dict[str, tuple[str, ...]]] = {
    "docs/how-to/bring-a-model.md": {
        "scikit-learn": ("sklearn", "skl2onnx", "pandas"),
        "LightGBM and XGBoost": ("sklearn", "lightgbm", "xgboost", "onnxmltools"),
        "PyTorch": ("torch", "onnxscript"),  # too large for CI
    },
    "docs/reference/encodings.md": {"Tables from Python": ("pandas",)},
}


def missing(block: Block) -> str:
    """Return a package that a block needs and that is not installed, or ""."""
    needs = NEEDS.get(block.page, {})
    modules = (m for heading in block.headings for m in needs.get(heading, ()))
    return next((m for m in modules if importlib.util.find_spec(m) is None), "")


@pytest.fixture(scope="module")
def servers(triton: ServedGateway) -> Iterator[Servers]:
    with Servers(**{"--profile triton": triton}) as started:
        yield started


@pytest.mark.parametrize("page", [page for page in PAGES if page not in FOLLOWED])
def test_the_blocks_of_a_page_work(page: str, tmp_path: Path, servers: Servers) -> None:
    with Reader(tmp_path, servers) as reader:
        for block in read_blocks(page):
            if missing(block):
                continue
            try:
                reader.follow(block)
            except Exception as e:
                e.add_note(f"in {block}:\n{block.text}")
                raise
        reader.finish()


def test_what_is_not_run_is_there() -> None:
    scripts = [b.text for p in PAGES for b in read_blocks(p) if b.language == "sh"]
    begun = [command for script in scripts for command in commands(script)]
    unused = [b for b in NOT_RUN if not any(c.startswith(b) for c in begun)]
    assert not unused, "take them out of NOT_RUN"
