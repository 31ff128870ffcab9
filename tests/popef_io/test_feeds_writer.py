from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from popef_io import (
    DataType,
    DuplicateBlobError,
    FeedDataInfo,
    InvalidValueError,
    Reader,
    Writer,
    WriterStateError,
)
from tests.popef_io.containers import info

IMAGES = FeedDataInfo("images", info(5, 7), 3)
LABELS = FeedDataInfo("labels", info(data_type=DataType.S64), 3)


def read(path: Path) -> Reader:
    reader = Reader()
    reader.parse_file(path)
    reader.verify()
    return reader


def test_in_turns(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((3, 5, 7), np.float32)
    with Writer(tmp_path / "file") as writer:
        writer.create_opaque_blob("before").write(b"x")
        with writer.create_feeds([IMAGES, LABELS]) as feeds:
            for index in range(3):
                feeds.write("images", images[index])
                feeds.write("labels", np.int64(index).tobytes())
            assert repr(feeds) == "<FeedsWriter images, labels open>"
        writer.create_opaque_blob("after").write(b"y")
    reader = read(tmp_path / "file")
    assert [blob.name for blob in reader.blobs] == [
        "before",
        "images",
        "labels",
        "after",
    ]
    np.testing.assert_array_equal(reader.feeds[0].data(), images)
    assert reader.feeds[1].data().tolist() == [0, 1, 2]


def test_same_file_as_one_after_another(tmp_path: Path) -> None:
    with Writer(tmp_path / "turns") as writer:
        feeds = writer.create_feeds([IMAGES, LABELS])
        feeds.write("labels", bytes(24))
        feeds.write("images", bytes(3 * 140))
    with Writer(tmp_path / "after") as writer:
        writer.create_feed_data(IMAGES).write(bytes(3 * 140))
        writer.create_feed_data(LABELS).write(bytes(24))
    turns, after = (tmp_path / name for name in ("turns", "after"))
    assert turns.read_bytes() == after.read_bytes()


def test_all_must_be_complete(tmp_path: Path) -> None:
    with Writer(tmp_path / "file") as writer:
        feeds = writer.create_feeds([LABELS, IMAGES])
        feeds.write("labels", bytes(24))
        with pytest.raises(
            WriterStateError, match=r"'images' .*got 0 bytes, expected 420"
        ):
            writer.create_opaque_blob("o")
        feeds.write("images", bytes(420))
        feeds.close()
        feeds.close()
        feeds.discard()
    assert [feed.name for feed in read(tmp_path / "file").feeds] == ["labels", "images"]


def test_discard_takes_all_back(tmp_path: Path) -> None:
    with Writer(tmp_path / "file") as writer:
        feeds = writer.create_feeds([LABELS, IMAGES])
        with pytest.raises(TypeError), feeds:
            feeds.write("labels", bytes(24) + None)  # type: ignore[operator]
        feeds.discard()
        with pytest.raises(WriterStateError, match="is discarded"):
            feeds.write("labels", b"x")
        with pytest.raises(WriterStateError, match="is discarded"):
            feeds.close()
        with writer.create_feeds([LABELS]) as feeds:
            feeds.discard()
        writer.create_opaque_blob("o").write(b"x")
    assert (tmp_path / "file").stat().st_size == 192
    with Writer(tmp_path / "file") as writer:
        writer.create_feeds([LABELS])
        writer.discard()
    assert os.listdir(tmp_path) == ["file"]


def test_none_at_all(tmp_path: Path) -> None:
    with Writer(tmp_path / "file") as writer:
        writer.create_feeds([])
        writer.create_opaque_blob("o")
    assert len(read(tmp_path / "file").blobs) == 1


def test_refuses(tmp_path: Path) -> None:
    words = FeedDataInfo("words", info(data_type=DataType.STRING), 2)
    with Writer(tmp_path / "file") as writer:
        writer.create_feed_data(LABELS).write(bytes(24))
        with pytest.raises(DuplicateBlobError, match="DATA_FEED blob 'labels'"):
            writer.create_feeds([IMAGES, LABELS])
        with pytest.raises(DuplicateBlobError, match="feed 'images' is given twice"):
            writer.create_feeds([IMAGES, IMAGES])
        with pytest.raises(InvalidValueError, match="strings of varying size"):
            writer.create_feeds([IMAGES, words])
        feeds = writer.create_feeds([IMAGES])
        with pytest.raises(
            InvalidValueError, match="unknown feed 'words'; the feeds are 'ima"
        ):
            feeds.write("words", b"x")
        feeds.write("images", bytes(420))
    assert len(read(tmp_path / "file").feeds) == 2
