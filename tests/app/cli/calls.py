"""Calls the command in this process, as a shell would."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import pytest

from app.cli import main


class Done(NamedTuple):
    """What a command left: its exit code and what it wrote."""

    code: int
    out: str
    err: str


Call: TypeAlias = Callable[..., Done]


def caller(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """A function that runs `popgate` with the arguments it is given."""

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["popgate", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        code = ended.value.code
        return Done(code if isinstance(code, int) else 0, captured.out, captured.err)

    return call
