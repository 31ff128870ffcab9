"""What differs when files change."""

from __future__ import annotations

from pathlib import Path

from app.config.file_stamps import stamp_of


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
