"""What differs when files change."""

from __future__ import annotations

import tempfile
from pathlib import Path

from app.config.file_stamps import stamp_of
from tests.support import as_nobody


def test_a_file_that_changes_comes_or_goes(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("1")
    seen = {stamp_of([a, b])}
    assert stamp_of([b, a]) in seen
    for change in (
        lambda: a.write_text("12"),
        lambda: b.write_text("1"),
        lambda: b.replace(a),
        a.unlink,
    ):
        change()
        now = stamp_of([a, b])
        assert now not in seen
        assert now == stamp_of([a, b])
        seen.add(now)
    before = stamp_of([tmp_path])
    a.write_text("1")
    assert stamp_of([tmp_path]) == before


def test_a_file_that_becomes_readable() -> None:
    """Its content has not changed, but only now may the server read it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        file = Path(folder, "a")
        file.write_text("1")
        seen = []
        for mode in (0, 0o444, 0o644):
            file.chmod(mode)
            with as_nobody():
                seen.append(stamp_of([file]))
        assert seen[0] != seen[1] == seen[2]
