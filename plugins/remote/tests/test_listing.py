"""Names and numbers of remote files, before one of them is read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.repository.model_sources import RemoteError
from popgate_remote.listing import (
    MAX_FILES,
    Listing,
    RemoteFile,
    belongs_to,
    check_name,
)


def file(name: str, size: int | None = 3, tag: str = "t") -> RemoteFile:
    return RemoteFile(name, f"place/{name}", size, tag)


def listed(*names: str, allow_python: bool = False, limit: int = 0) -> Listing:
    return Listing.of(map(file, names), allow_python=allow_python, limit=limit)


@pytest.mark.parametrize(
    "name",
    [
        "../model.onnx",
        "a/../../model.onnx",
        "/etc/model.onnx",
        "a//model.onnx",
        "a/./model.onnx",
        "..",
        "",
        "a/",
        "a\\..\\model.onnx",
        "a\0.onnx",
        "a\n.onnx",
        "x" * 201,
        "/".join("abcdefghi"),
        "\ud800.onnx",
    ],
)
def test_a_name_that_could_leave_the_cache_is_refused(name: str) -> None:
    with pytest.raises(RemoteError, match="name"):
        check_name(name)
    with pytest.raises(RemoteError, match="name"):
        listed("good.onnx", name)


def test_what_is_taken_and_what_is_not() -> None:
    names = ("1/model.onnx", "1/weights.data", "config.toml", "1/lib.so", "1/model.py")
    found = listed(*names, ".git/x.onnx", "__pycache__/y", "1/.hidden")
    assert [f.name for f in found.files] == [
        "1/model.onnx",
        "1/weights.data",
        "config.toml",
    ]
    hidden = (".git/x.onnx", "1/.hidden", "1/lib.so", "1/model.py", "__pycache__/y")
    assert found.skipped == hidden
    with_code = listed(*names, allow_python=True)
    assert [f.name for f in with_code.files] == sorted(names)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["1/model.py", "1/a.txt"], "model.py .Python files require --allow-python"),
        (["onnx/m.onnx", "a.txt"], "onnx/m.onnx is nested too deeply"),
        (["1/a/m.onnx"], "1/a/m.onnx is nested too deeply"),
        (["a/m.onnx", "tokenizer.json"], "a/m.onnx is nested too deeply"),
        (["a.txt"], "neither an .onnx nor a .popef file"),
        (["a.onnx", "a.onnx"], "two files have the name 'a.onnx'"),
        (["a/b.onnx", "a"], "'a' is both a file and a folder"),
    ],
)
def test_what_is_no_model_is_told(names: list[str], text: str) -> None:
    with pytest.raises(RemoteError, match=text):
        listed(*names)


def test_code_alone_is_a_model_where_it_is_allowed() -> None:
    assert [f.name for f in listed("1/model.py", allow_python=True).files]


def test_sizes_and_numbers_are_bounded() -> None:
    assert listed("a.onnx", "b.onnx", limit=6).size == 6
    with pytest.raises(
        RemoteError,
        match=r"2 files of 6 B in all, more than --model-download-limit \(5",
    ):
        listed("a.onnx", "b.onnx", limit=5)
    endless = (file(f"{n}.onnx") for n in iter(int, 1))
    with pytest.raises(RemoteError, match="two files"):
        Listing.of(endless, allow_python=False)
    many = (file(f"{n}.onnx") for n in range(MAX_FILES + 1))
    with pytest.raises(RemoteError, match=f"more than {MAX_FILES} files"):
        Listing.of(many, allow_python=False)


def test_the_digest_tells_changes() -> None:
    first = file("a.onnx")
    sums = (("sha256", "0" * 64),)
    listings = [
        Listing((one, file("b.onnx")))
        for one in (
            first,
            replace(first, tag="u"),
            replace(first, size=4),
            replace(first, name="c.onnx"),
            replace(first, checksums=sums),
        )
    ]
    assert len({listing.digest for listing in listings}) == len(listings)
    # A digest of the content says more than what the server calls it.
    same = (replace(first, checksums=sums, tag=tag) for tag in "xy")
    assert len({Listing((each,)).digest for each in same}) == 1


def test_external_data_belongs_to_its_model() -> None:
    assert belongs_to("model.onnx", "model.onnx")
    assert belongs_to("model.onnx_data", "model.onnx")
    assert belongs_to("model.onnx.data", "model.onnx")
    assert not belongs_to("model.onnxes", "model.onnx")
    assert not belongs_to("other.onnx", "model.onnx")
