from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from popef_io import Reader, dump, dump_document, dump_text
from popef_io.__main__ import main
from tests.popef_io.containers import HAS_DUMPS, write_small


@pytest.mark.skipif(not HAS_DUMPS, reason="no plugin makes dumps")
def test_a_plugin_makes_them(tmp_path: Path) -> None:
    with Reader() as reader:
        reader.parse_file(write_small(tmp_path / "small.popef"))
        assert dump_text(reader).startswith(str(tmp_path / "small.popef"))
        assert len(dump_document(reader)["blobs"]) == 6


def test_without_a_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: ())
    dump._plugin.cache_clear()
    why = "no installed plugin prints the contents of PopEF files"
    with pytest.raises(ImportError, match=why):
        dump_text(Reader())
    assert main([str(write_small(tmp_path / "small.popef"))]) == 1
    assert capsys.readouterr().err.startswith(why)
