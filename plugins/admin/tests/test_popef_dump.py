from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from popef_io import (
    Anchor,
    Metadata,
    Option,
    PopefError,
    ProgramFlow,
    Reader,
    TensorDataInfo,
    TensorType,
    Writer,
)
from popgate_admin.popef_dump import dump_document, dump_text
from tests.app.cli.calls import Call
from tests.popef_io.containers import info, parse, write_small
from tests.popef_io.test_damage import MASKS, with_right_checksums
from tests.popef_io.test_round_trip import blobs, quick, write

SMALL = """\
{path}: 6 blobs, 1.75 KiB

blob  type               name    offset   size  content
   0  POPLAR_EXECUTABLE  net          0  192 B  220 B, compressed to {stored} B
   1  METADATA           net        192  704 B
   2  DATA_TENSOR        w          896  192 B  F32[2, 3]
   3  DATA_FEED          x         1088  320 B  4 x F32[2, 3]
   4  DATA_TENSOR        labels    1408  192 B  STRING[3]
   5  OPAQUE             notes     1600  192 B  8 B

executable net
  replication_factor  1
  num_ipus            1
  ipu_version         0
  is_pod              no
  num_processes       1
  is_inference        yes
  device_iterations   1
  seed_handle         -
  program flow
    load  0 load
    main  1 main
    save  -
  anchors
    name  type    tensor     programs  handle
    x     INPUT   F32[?, 3]  1         h2d_x   has data
    y     OUTPUT  F32[?, 2]  1         d2h_y
    and 2 more of other programs; --all prints them
  engine options
    popgate.batching  rows
"""


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    reader = Reader()
    reader.parse_file(write_small(tmp_path / "small.popef"))
    return reader


def read(path: Path) -> Reader:
    reader = Reader()
    reader.parse_file(path)
    return reader


def test_text(reader: Reader, tmp_path: Path) -> None:
    stored = reader.blobs[0].header.payload_size  # is the zlib version's to say
    path = tmp_path / "small.popef"
    assert dump_text(reader) == SMALL.format(path=path, stored=stored)


def test_metadata_only(reader: Reader) -> None:
    text = dump_text(reader, metadata_only=True)
    assert "DATA_TENSOR" not in text
    assert text.endswith(SMALL[SMALL.index("executable net") :])
    assert "blobs" not in dump_document(reader, metadata_only=True)


def test_all(reader: Reader) -> None:
    text = dump_text(reader, all=True)
    assert "    w     INPUT    F32[2, 3]  0         h2d_w   has data\n" in text
    assert "    rng   UNKNOWN  U32[...]   -         -\n" in text
    crc = f"{reader.blobs[2].header.payload_crc:08x}"
    assert f"F32[2, 3] (CRC-32 {crc})" in text
    assert "--all" not in text
    blob = dump_document(reader, all=True)["blobs"][2]
    assert blob["payload_offset"] == blob["offset"] + 128
    assert blob["payload_crc32"] == crc


def test_document_is_json(reader: Reader, tmp_path: Path) -> None:
    document = dump_document(reader)
    assert json.loads(json.dumps(document)) == document
    assert document["files"] == [
        {"path": str(tmp_path / "small.popef"), "size": 1792, "blobs": 6}
    ]
    assert document["blobs"][3] == {
        "file": str(tmp_path / "small.popef"),
        "index": 3,
        "type": "DATA_FEED",
        "name": "x",
        "executable": "",
        "offset": 1088,
        "size": 320,
        "payload_size": 96,
        "content_size": 96,
        "compressed": False,
        "data_type": "F32",
        "shape": [2, 3],
        "num_tensors": 4,
    }
    (metadata,) = document["metadata"]
    assert metadata["program_flow"]["main"] == [{"program": 1, "name": "main"}]
    assert metadata["programs"] == {"0": "load", "1": "main"}
    assert [anchor["has_data"] for anchor in metadata["anchors"]] == [
        True,
        True,
        False,
        False,
    ]
    assert metadata["anchors"][3]["shape"] is None
    assert metadata["engine_options"] == {"popgate.batching": "rows"}


def test_several_files(reader: Reader, tmp_path: Path) -> None:
    with Writer(tmp_path / "other") as writer:
        writer.create_opaque_blob("more").write(bytes(5000))
    reader.parse_file(tmp_path / "other")
    text = dump_text(reader)
    assert text.startswith(f"{tmp_path / 'small.popef'}: 6 blobs, 1.75 KiB\n")
    assert f"\n{tmp_path / 'other'}: 1 blob, 5.06 KiB\n" in text
    assert re.search(rf"OPAQUE +more +0 +5.06 KiB +4.88 KiB +{tmp_path}/other\n", text)


def test_long_tables_and_values_are_cut(tmp_path: Path) -> None:
    with Writer(tmp_path / "file") as writer:
        writer.write(Metadata("net", engine_options=(Option("long", "v" * 500),)))
        for index in range(40):
            writer.create_opaque_blob(f"blob {index}")
    text = dump_text(read(tmp_path / "file"))
    assert "blob 22" in text
    assert "blob 23" not in text
    assert "and 17 more blobs; --all prints them" in text
    assert "v" * 100 + "... (500 characters)" in text
    everything = dump_text(read(tmp_path / "file"), all=True)
    assert "blob 39" in everything
    assert "v" * 500 in everything


def test_without_main_programs_all_anchors_are_shown(tmp_path: Path) -> None:
    with Writer(tmp_path / "file") as writer:
        anchor = Anchor("a", "h", info(2), TensorType.INPUT, (5,), is_per_replica=True)
        writer.write(Metadata("net", (anchor,), ProgramFlow(load=(5, 7))))
    text = dump_text(read(tmp_path / "file"))
    assert "a     INPUT  F32[2]  5         h       per replica\n" in text
    assert "load  5, 7\n" in text


def test_nothing_but_data(tmp_path: Path) -> None:
    with Writer(tmp_path / "file") as writer:
        writer.create_tensor_data(TensorDataInfo("t", info(0)))
    text = dump_text(read(tmp_path / "file"))
    assert text.count("\n") == 4
    assert dump_text(Reader(), metadata_only=True) == "\n"


def test_names_cannot_command_the_terminal(tmp_path: Path) -> None:
    nasty = "\x1b[2J\r\n\0\u202e\U000e0001é"
    with Writer(tmp_path / "file") as writer:
        anchor = Anchor(nasty, nasty, info(), TensorType.INPUT, (1,))
        flow = ProgramFlow(main=(1,))
        options = (Option(nasty, nasty),)
        writer.write(
            Metadata(
                nasty,
                (anchor,),
                flow,
                {1: nasty},
                engine_options=options,
                seed_handle=nasty,
            )
        )
        writer.create_opaque_blob(nasty, nasty)
    reader = read(tmp_path / "file")
    for line in dump_text(reader, all=True).split("\n"):
        assert line.isprintable()
    assert r"\x1b[2J\r\n\x00\u202e\U000e0001é" in dump_text(reader)
    assert dump_document(reader)["metadata"][0]["executable"] == nasty


@quick
@given(blobs=blobs)
def test_every_container_has_a_dump(tmp_path: Path, blobs: list[Any]) -> None:
    path = tmp_path / "file"
    with Writer(path) as writer:
        for item in blobs:
            write(writer, item)
    made = read(path)
    assert len(dump_document(made)["blobs"]) == len(blobs)
    assert dump_text(made, all=True).count("\n") > len(blobs)


@pytest.mark.parametrize("mask", MASKS)
def test_every_damaged_container_has_a_dump_or_an_error(
    tmp_path: Path, mask: int
) -> None:
    path = write_small(tmp_path / "small.popef")
    whole = path.read_bytes()
    blobs = read(path).blobs
    refused = 0
    for blob in blobs:
        end = blob.offset + 64 + blob.header.descriptor_size
        for offset in range(blob.offset, end):
            damaged = bytearray(whole)
            damaged[offset] ^= mask
            reader = Reader()
            try:
                parse(reader, with_right_checksums(damaged, blob))
                assert dump_text(reader, all=True).endswith("\n")
            except PopefError:
                refused += 1
    assert refused > 500


class TestCommand:
    """`popgate dump`."""

    def test_prints(self, popgate: Call, reader: Reader, tmp_path: Path) -> None:
        path = str(tmp_path / "small.popef")
        for arguments, expected in (
            ([path], dump_text(reader)),
            (["-m", path], dump_text(reader, metadata_only=True)),
            (["--all", "--verify", path], dump_text(reader, all=True)),
        ):
            done = popgate("dump", *arguments)
            assert (done.code, done.out) == (0, expected)
        done = popgate("dump", "--json", path)
        assert json.loads(done.out) == dump_document(reader)

    def test_says_what_is_wrong(self, popgate: Call, tmp_path: Path) -> None:
        path = write_small(tmp_path / "file")
        done = popgate("dump", tmp_path / "nowhere")
        assert done.code == 1
        assert "No such file" in done.err
        damaged = bytearray(path.read_bytes())
        damaged[128] ^= 1
        path.write_bytes(damaged)
        assert popgate("dump", path).code == 0
        done = popgate("dump", "--verify", path)
        assert (done.code, done.out) == (1, "")
        start = f"popgate: error: {path}, blob 0 POPLAR_EXECUTABLE 'net', offset 0:"
        assert done.err.startswith(start)

    @pytest.mark.usefixtures("reader")
    def test_ends_without_a_traceback_when_nobody_reads(self, tmp_path: Path) -> None:
        path = str(tmp_path / "small.popef")
        command = [sys.executable, "-m", "popgate", "dump", path]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait(60) == 1
