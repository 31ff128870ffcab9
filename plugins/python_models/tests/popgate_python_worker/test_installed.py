"""Packages that a Python model asks for: what is installed."""

from __future__ import annotations

from importlib import metadata

import pytest

from engine import InvalidModel
from popgate_python_worker.installed import check_installed


@pytest.mark.parametrize(
    ("requirement", "found", "holds"),
    [
        ("some-package", "0.1", True),
        ("some-package>=2", "2.0.1", True),
        ("some-package>=2", "10.0", True),
        ("some-package >= 2.1, < 3", "2.0.9", False),
        ("some-package==2.1", "2.1.0", True),
        ("some-package!=2.1", "2.1.0", False),
        ("some-package<3", "3.0rc1", False),
        ("some-package>1.9", "1!1.10.post2", True),
    ],
)
def test_versions(
    monkeypatch: pytest.MonkeyPatch, requirement: str, found: str, holds: bool
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: found)
    if holds:
        check_installed([requirement])
        return
    with pytest.raises(InvalidModel, match=f"some-package {found} is installed"):
        check_installed([requirement])


@pytest.mark.parametrize("text", ["", "a b", "a>=", "a~=1", "a @ http://x", "a[x]"])
def test_what_is_not_understood(text: str) -> None:
    with pytest.raises(InvalidModel, match="must be a name and versions"):
        check_installed([text])
