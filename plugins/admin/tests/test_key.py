"""`popgate key`."""

from __future__ import annotations

from pathlib import Path

from app.config.keys import digest_of, read_keys
from tests.app.served import run_popgate


def test_an_entry_that_the_server_reads(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    secrets = {}
    for name, options in (
        ("shop", ["--groups", "infer, pages", "--models", 'digits,a"\\b\n']),
        ("plain", []),
    ):
        made = run_popgate("key", name, *options)
        assert made.returncode == 0, made.stderr
        secrets[name] = made.stderr.split()[-1]
        assert secrets[name] not in made.stdout
        with path.open("a") as file:
            file.write(made.stdout)
    shop, plain = read_keys(path).key
    assert (shop.name, shop.groups, shop.models) == (
        "shop", ("infer", "pages"), ("digits", 'a"\\b')
    )  # fmt: skip
    assert (plain.groups, plain.models) == (("infer", "metadata"), ("*",))
    assert shop.sha256 == digest_of(secrets["shop"].encode())
    assert secrets["shop"] != secrets["plain"]


def test_mistakes_are_one_line() -> None:
    for arguments, text in (
        (["a b"], "name must be 1 to 100 letters"),
        (["a", "--groups", "all"], "groups.0 must be"),
    ):
        done = run_popgate("key", *arguments)
        assert done.returncode == 2
        assert text in done.stderr
        assert done.stdout == ""
