"""The file of keys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.config.config_keys import KeyProblem
from app.config.keys import KeyConfig, KeysConfig, digest_of, read_keys
from app.config.log_config import read_log_config

DIGEST = digest_of(b"secret")


def read(tmp_path: Path, text: str | bytes) -> KeysConfig:
    path = tmp_path / "keys.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_keys(path)


def test_everything_that_can_be_said(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        f"""
        anonymous = ["metadata"]
        [[key]]
        name = "shop"
        sha256 = "{DIGEST.hex().upper()}"
        groups = ["infer", "manage"]
        models = ["digits", "r-*"]
        requests_per_second = 2.5
        concurrent = 8
        weight = 3
        """,
    )
    shop = KeyConfig("shop", DIGEST, ("infer", "manage"), ("digits", "r-*"), 2.5, 8, 3)
    assert found == KeysConfig(("metadata",), (shop,))


def test_what_need_not_be_said(tmp_path: Path) -> None:
    assert read(tmp_path, "anonymous = []") == KeysConfig()
    found = read(tmp_path, f'[[key]]\nname = "a"\nsha256 = "{DIGEST.hex()}"')
    assert found.key == (KeyConfig("a", DIGEST, ("infer", "metadata"), ("*",)),)


KEY = f'[[key]]\nname = "a"\nsha256 = "{DIGEST.hex()}"\n'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "[[key]]\nname = 'a'",
            "key.0: sha256 or certificate is missing; set one of them",
        ),
        (f'[[key]]\nsha256 = "{DIGEST.hex()}"', "key.0: the key name is missing"),
        (KEY + "group = []", "unknown key 'group' (did you mean groups?)"),
        (KEY + "groups = ['all']", "key.0.groups.0 must be 'infer', 'metadata'"),
        (KEY + "groups = ['infer', 'infer']", "without duplicates"),
        (KEY + "models = ['']", "at least 1 character"),
        (KEY + "requests_per_second = 0", "must be at least 0.001, got 0"),
        (KEY + "requests_per_second = nan", "must be"),
        (KEY + "concurrent = 1.5", "must be a whole number"),
        (KEY + "concurrent = true", "must be"),
        (KEY + "weight = 0", "must be at least 1, got 0"),
        (
            "".join(
                KEY.replace('"a"', f'"{n}"') + f"weight = {n}\n" for n in range(1, 10)
            ),
            "9 different weights; at most 8 are allowed",
        ),
        (KEY + KEY, "two entries have the same name, as 'a' has"),
        (
            KEY + KEY.replace('"a"', '"b"'),
            "two entries have the same sha256, as 'b' has",
        ),
        ("[[key]]\nname = 'a b'", "key.0.name must be 1 to 100 letters"),
        ("[[key]]\nsha256 = 'secret'", "must be the SHA-256 of a key"),
        ("keys = 1", "unknown key 'keys' (did you mean key?)"),
        (" \n", "the file is empty; to configure no keys, write anonymous = []"),
        (
            KEY.replace("[[key]]", "[key]"),
            "got a table; write one entry of the list as [[key]]",
        ),
        ("[[key]", "not TOML"),
        (b"\xff", "not TOML"),
        ("a = " + "[" * 5000, "not TOML"),
        ("#" * (1 << 20) + "#", "more than 1048576 bytes"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, text: str | bytes, problem: str
) -> None:
    with pytest.raises(KeyProblem) as caught:
        read(tmp_path, text)
    assert problem in str(caught.value)


def test_a_file_is_read_within_bounds(tmp_path: Path) -> None:
    """Neither a file of 1 TB, which takes no place on the disk, nor a pipe that nobody
    writes into holds up the server."""
    huge, pipe = tmp_path / "huge.toml", tmp_path / "pipe.toml"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(KeyProblem, match="more than 1048576 bytes"):
        read_keys(huge)
    os.mkfifo(pipe)
    with pytest.raises(KeyProblem, match="it is not a regular file"):
        read_keys(pipe)
    with pytest.raises(KeyProblem, match="it is not a regular file"):
        read_log_config(pipe)


@pytest.mark.parametrize("secret", ["pg_not-a-hash", f"sha256:{DIGEST.hex()}"])
@pytest.mark.parametrize("table", ["[[key]]", "[key]"])
def test_messages_show_no_secret(tmp_path: Path, secret: str, table: str) -> None:
    with pytest.raises(KeyProblem) as caught:
        read(tmp_path, f'{table}\nname = "a"\nsha256 = "{secret}"\n')
    assert secret not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        'key = ["the-secret"]',
        'key = "the-secret"',
        '[[key]]\nname = "the-secret with a space"',
        '[[key]]\nname = "a"\nsha256 = ["the-secret"]',
        '[[key]]\nname = "a"\ncertificate = ["the-secret"]',
        '[[key]]\nname = "a"\ngroups = "the-secret"',
        "".join(
            f'[[key]]\nname = "the-secret{n}"\nsha256 = "{n:064x}"\n'
            for n in range(1001)
        ),
    ],
)
def test_messages_show_nothing_of_keys(tmp_path: Path, text: str) -> None:
    """Wherever somebody has written the key by mistake."""
    with pytest.raises(KeyProblem) as caught:
        read(tmp_path, text)
    assert "the-secret" not in str(caught.value)
    assert "0000" not in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"\n"])
def test_the_hash_of_nothing_is_no_key(tmp_path: Path, text: bytes) -> None:
    """`printf "$KEY" | sha256sum` where the variable is not set."""
    digest = digest_of(text).hex()
    with pytest.raises(KeyProblem, match="the key was not set"):
        read(tmp_path, f'[[key]]\nname = "a"\nsha256 = "{digest}"')
