"""Every block of README and docs does what it says; `reader.py` says how."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.served import ROOT, ServedGateway
from tests.docs.reader import NOT_RUN, Reader, Servers, commands, read_blocks

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
#: Pages of which a block needs a package that is not installed with the rest.
NEEDS = {
    "docs/how-to/bring-a-model.md": ("sklearn", "skl2onnx", "pandas"),
    "docs/how-to/from-lightgbm.md": ("sklearn", "lightgbm", "xgboost", "onnxmltools"),
    "docs/how-to/from-pytorch.md": ("torch", "onnxscript"),  # too large for CI
}


@pytest.fixture(scope="module")
def servers(triton: ServedGateway) -> Iterator[Servers]:
    with Servers(**{"--profile triton": triton}) as started:
        yield started


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_work(page: str, tmp_path: Path, servers: Servers) -> None:
    for module in NEEDS.get(page, ()):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    with Reader(tmp_path, servers) as reader:
        for block in read_blocks(page):
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
