"""Downloads in `popgate cache`.

Covers: plugins/remote/src/popgate_remote/model_source.py.
"""

from __future__ import annotations

from pathlib import Path

from plugins.admin.tests.test_cache import DAY, aged
from popgate_remote.model_cache import LOCK
from tests.app.served import run_popgate


def test_downloads_go_unless_they_are_held(tmp_path: Path) -> None:
    import fcntl

    models = tmp_path / "models" / "models"
    for name in ("free", "held"):
        (models / name / "digest").mkdir(parents=True)
        (models / name / LOCK).touch()
        manifest = models / name / "digest" / ".manifest.json"
        manifest.write_text(f'{{"url": "https://example.com/{name}"}}')
        aged(models / name / LOCK, DAY)
    # A process that was killed while it made these has left them without a lock.
    for number in range(20):
        (models / f"begun-{number}").mkdir()
    with (models / "held" / "digest" / ".manifest.json").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        done = run_popgate("cache", "--empty", "--cache-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "https://example.com/free  removed" in done.stdout
    assert "https://example.com/held  in use" in done.stdout
    assert not (models / "free").exists()
    assert (models / "held" / "digest").exists()
