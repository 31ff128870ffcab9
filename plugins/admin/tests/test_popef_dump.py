from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from popef_io import (
    Anchor,
    Metadata,
    Option,
    ProgramFlow,
    Reader,
    TensorDataInfo,
    TensorType,
    Writer,
    dump_document,
    dump_text,
)
from popef_io.__main__ import main
from tests.popef_io.containers import info, write_small

SMALL = """\
{path}: 6 blobs, 1.8 KiB

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
    assert text.startswith(f"{tmp_path / 'small.popef'}: 6 blobs, 1.8 KiB\n")
    assert f"\n{tmp_path / 'other'}: 1 blob, 5.1 KiB\n" in text
    assert re.search(rf"OPAQUE +more +0 +5.1 KiB +4.9 KiB +{tmp_path}/other\n", text)


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


class TestCommand:
    """python -m popef_io."""

    def test_prints(
        self, reader: Reader, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = str(tmp_path / "small.popef")
        for arguments, expected in (
            ([path], dump_text(reader)),
            (["-m", path], dump_text(reader, metadata_only=True)),
            (["--all", "--verify", path], dump_text(reader, all=True)),
        ):
            assert main(arguments) == 0
            assert capsys.readouterr().out == expected
        assert main(["--json", path]) == 0
        assert json.loads(capsys.readouterr().out) == dump_document(reader)

    def test_says_what_is_wrong(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = write_small(tmp_path / "file")
        assert main([str(tmp_path / "nowhere")]) == 1
        assert "No such file" in capsys.readouterr().err
        damaged = bytearray(path.read_bytes())
        damaged[128] ^= 1
        path.write_bytes(damaged)
        assert main([str(path)]) == 0
        capsys.readouterr()
        assert main(["--verify", str(path)]) == 1
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.startswith(
            f"{path}, blob 0 POPLAR_EXECUTABLE 'net', offset 0:"
        )

    @pytest.mark.usefixtures("reader")
    def test_ends_quietly_when_nobody_reads(self, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "popef_io", str(tmp_path / "small.popef")]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait(60) == 0
