"""`popgate batch` against a real gateway: every row once, also after kill -9.

Covers: plugins/tools/src/popgate_tools/batch/command.py,
    plugins/tools/src/popgate_tools/batch/rows.py,
    plugins/tools/src/popgate_tools/batch/results.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from popef_io import DataType
from tests.app.cli.calls import Call
from tests.app.served import POPGATE, ROOT, Serve, ServedGateway
from tests.engine.models import Port, write_model
from tests.support import file_size_limit, until


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def by_row(path: Path) -> dict[int, Any]:
    """The results by their rows, each of which is there once."""
    found = lines(path)
    rows = [line["row"] for line in found]
    assert len(rows) == len(set(rows))
    return {line["row"]: line for line in found}


def test_columns_of_csv(popgate: Call, gateway: ServedGateway, tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    source.write_text("id,a,b,c,d\nx,1,2,3,4\ny,0,0,0,0.5\nz,1,2,what,4\nq,1,2,3,4,5\n")
    done = popgate(
        "batch", "affine", "-i", source, "--url", gateway.url, "--keep", "id"
    )
    assert done.code == 1
    assert "2 rows → " in done.err
    assert "2 rows failed → " in done.err
    target = tmp_path / "rows.csv.results.jsonl"
    assert by_row(target) == {
        0: {"row": 0, "id": "x", "outputs": {"output": [3.0, 5.0, 7.0, 9.0]}},
        1: {"row": 1, "id": "y", "outputs": {"output": [1.0, 1.0, 1.0, 2.0]}},
    }
    assert "OUTPUT.errors.jsonl" in popgate("batch", "--help").out
    errors = by_row(tmp_path / "rows.csv.results.jsonl.errors.jsonl")
    assert {error["id"] for error in errors.values()} == {"z", "q"}
    assert "'what' is not a value of FP32" in errors[2]["error"]
    assert "more cells than the header" in errors[3]["error"]


def test_empty_cells_are_nan(
    popgate: Call, gateway: ServedGateway, tmp_path: Path
) -> None:
    source = tmp_path / "gaps.csv"
    source.write_text("a,b,c,d\n1,,3,4\n")
    done = popgate("batch", "affine", "-i", source, "--url", gateway.url)
    assert done.code == 0, done.err
    (line,) = lines(tmp_path / "gaps.csv.results.jsonl")
    assert line["outputs"]["output"] == [3.0, "NaN", 7.0, 9.0]


def test_what_is_no_number_has_a_name(
    popgate: Call, gateway: ServedGateway, tmp_path: Path
) -> None:
    source, target = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text(
        '{"input": [[0.1, NaN, Infinity, -Infinity]], "note": Infinity}\n'
        '{"input": [[NaN]], "note": NaN}\n'
    )
    options = ("--keep", "note", "--url", gateway.url)
    done = popgate("batch", "affine", "-i", source, "-o", target, *options)
    assert done.code == 1
    (text,) = target.read_text().splitlines()
    values = '[1.2,"NaN","Infinity","-Infinity"]'  # as the numbers of FP32
    assert text == f'{{"row":0,"note":"Infinity","outputs":{{"output":{values}}}}}'
    (error,) = lines(tmp_path / "out.jsonl.errors.jsonl")
    assert (error["row"], error["note"]) == (1, "NaN")


def test_named_inputs_of_jsonl(
    popgate: Call, gateway: ServedGateway, tmp_path: Path
) -> None:
    source, target = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows: list[Any] = [
        {"A": [[1, 1, 1]] * 2, "B": [[0, 0, 0]] * 2},
        {"inputs": {"A": [[1, 1, 1]] * 2, "B": [[1, 1, 1]] * 2}},
        {"A": [[1]]},
        {"A": [[1, 1, 1]], "B": [[1, 1, 1]]},
    ]
    text = "\n".join(json.dumps(row) for row in rows) + "\nno json\n"
    source.write_text(text)
    done = popgate(
        "batch", "weighted", "-i", source, "-o", target, "--url", gateway.url
    )
    assert done.code == 1
    found = by_row(target)
    assert set(found) == {0, 1}
    assert found[1]["outputs"]["output"] == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    errors = {e["row"]: e for e in lines(tmp_path / "out.jsonl.errors.jsonl")}
    assert set(errors) == {2, 3, 4}
    assert errors[2]["error"].startswith(
        "no column B for the model's inputs; the columns are A"
    )
    assert errors[3]["code"] == "invalid_input"
    assert errors[4]["error"].startswith("not JSON")


def test_texts(popgate: Call, gateway: ServedGateway, tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    source.write_text('input\nGrüße\n"a, b"\n', encoding="utf-8")
    assert popgate("batch", "text", "-i", source, "--url", gateway.url).code == 0
    found = by_row(tmp_path / "rows.csv.results.jsonl")
    assert [found[n]["outputs"]["output"] for n in (0, 1)] == ["Grüße!", "a, b!"]


def test_rows_that_cannot_be_sent_or_written_as_they_are(
    popgate: Call, gateway: ServedGateway, tmp_path: Path
) -> None:
    """A lone surrogate, a number over 64 bits, a deep list: other rows are run."""
    source = tmp_path / "rows.jsonl"
    source.write_text(
        '{"input": "\\ud800", "id": "\\udfff"}\n'
        + "[" * 100_000
        + '\n{"input": "a", "id": 36893488147419103232}\n'
    )
    options = ("--keep", "id", "--url", gateway.url)
    done = popgate("batch", "text", "-i", source, *options)
    assert done.code == 1, done.err
    target = tmp_path / "rows.jsonl.results.jsonl"
    assert by_row(target) == {
        2: {"row": 2, "id": "36893488147419103232", "outputs": {"output": "a!"}}
    }
    errors = by_row(tmp_path / "rows.jsonl.results.jsonl.errors.jsonl")
    assert "input: a string is not valid Unicode" in errors[0]["error"]
    assert errors[0]["id"] == "\\udfff"
    assert "not JSON" in errors[1]["error"]
    assert popgate("batch", "text", "-i", source, *options).code == 1
    assert set(by_row(target)) == {2}


def test_null_is_the_empty_string(
    popgate: Call, gateway: ServedGateway, tmp_path: Path
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"input": null}\n{"input": ["a", null]}\n')
    assert popgate("batch", "text", "-i", source, "--url", gateway.url).code == 0
    found = by_row(tmp_path / "rows.jsonl.results.jsonl")
    assert [found[n]["outputs"]["output"] for n in (0, 1)] == ["!", ["a!", "!"]]


def test_a_long_cell_of_csv(
    popgate: Call, gateway: ServedGateway, tmp_path: Path
) -> None:
    source, text = tmp_path / "rows.csv", "a" * 200_000
    source.write_text(f"input\n{text}\n")
    done = popgate("batch", "text", "-i", source, "--url", gateway.url)
    assert done.code == 0, done.err
    (line,) = lines(tmp_path / "rows.csv.results.jsonl")
    assert line["outputs"]["output"] == f"{text}!"


def test_parquet(popgate: Call, gateway: ServedGateway, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    source = tmp_path / "rows.parquet"
    values = np.arange(20.0).reshape(5, 4)
    parquet.write_table(pyarrow.table({"input": list(values)}), source)
    assert popgate("batch", "affine", "-i", source, "--url", gateway.url).code == 0
    found = by_row(tmp_path / "rows.parquet.results.jsonl")
    got = [found[n]["outputs"]["output"] for n in range(5)]
    np.testing.assert_array_equal(got, values * 2 + 1)
    source.write_bytes(b"none")
    done = popgate("batch", "affine", "-i", source, "--url", gateway.url)
    assert done.code == 2
    assert "--input" in done.err


def identity_of_images(path: Path) -> Path:
    shape = (-1, 3, 2, 2)
    return write_model(
        path,
        [helper.make_node("Identity", ["image"], ["same"])],
        [Port("image", shape, DataType.F32)],
        [Port("same", shape, DataType.F32)],
        batching="rows",
    )


def test_images(popgate: Call, serve: Serve, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    served = serve(lambda root: identity_of_images(root / "images.popef"))
    folder = tmp_path / "images"
    (folder / "more").mkdir(parents=True)
    image.new("RGB", (2, 2), (255, 0, 51)).save(folder / "a.png")
    image.new("L", (8, 8), 255).save(folder / "more" / "b.png")
    (folder / "c.jpg").write_bytes(b"no image")
    done = popgate("batch", "images", "-i", folder, "--url", served.url)
    assert done.code == 1
    found = by_row(tmp_path / "images.results.jsonl")
    assert {line["file"] for line in found.values()} == {"a.png", "more/b.png"}
    first = next(line for line in found.values() if line["file"] == "a.png")
    red, green, blue = (np.array(c).mean() for c in first["outputs"]["same"])
    assert (red, green, round(blue, 6)) == (1.0, 0.0, 0.2)
    (error,) = lines(tmp_path / "images.results.jsonl.errors.jsonl")
    assert error["file"] == "c.jpg"


def test_kill_it_and_run_it_again(
    popgate: Call, gateway: ServedGateway, tmp_path: Path
) -> None:
    source, target = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    count = 4000
    source.write_text("".join(f'{{"input": [{n}, 0, 0, 0]}}\n' for n in range(count)))
    arguments = ["batch", "affine", "-i", str(source), "-o", str(target)]
    arguments += ["--url", gateway.url, "--in-flight", "4"]
    process = subprocess.Popen(
        [*POPGATE, *arguments], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    until(lambda: target.exists() and target.stat().st_size > 2000)
    process.send_signal(signal.SIGKILL)
    process.wait()
    whole = target.read_bytes()
    before = whole.count(b"\n")
    assert 0 < before < count
    with target.open("ab") as file:  # what a power cut leaves of a line
        file.write(b'{"row": 17, "outp')
    done = popgate(*arguments)
    assert done.code == 0, done.err
    assert f"{count - before} rows → " in done.err
    assert f"{before} done earlier" in done.err
    found = by_row(target)
    assert set(found) == set(range(count))
    assert all(found[n]["outputs"]["output"][0] == 2 * n + 1 for n in range(count))
    assert target.read_bytes().startswith(whole[: whole.rindex(b"\n")])
    done = popgate(*arguments)
    assert done.code == 0
    assert "0 rows → " in done.err


def test_results_of_something_else(
    popgate: Call, gateway: ServedGateway, tmp_path: Path
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"input": [1, 2, 3, 4]}\n')
    arguments = ["batch", "affine", "-i", source, "--url", gateway.url]
    assert popgate(*arguments).code == 0
    os.utime(source, (1, 1))
    done = popgate(*arguments)
    assert done.code == 2
    assert "has the results of another model" in done.err
    other = tmp_path / "mine.jsonl"
    other.write_text("precious\n")
    done = popgate(*arguments, "-o", other)
    assert done.code == 2
    assert other.read_text() == "precious\n"


def test_failed_rows_that_cannot_be_written(
    popgate: Call, gateway: ServedGateway, tmp_path: Path
) -> None:
    """None is lost: the command ends with an error, as for results."""
    source = tmp_path / "rows.jsonl"
    source.write_text('{"input": [1]}\n' * 1000)
    with file_size_limit(1 << 16):
        done = popgate("batch", "affine", "-i", source, "--url", gateway.url)
    assert done.code == 1
    assert "the results cannot be written: [Errno 27]" in done.err


def test_mistakes(popgate: Call, gateway: ServedGateway, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"input": [1, 2, 3, 4]}\n')
    binary = tmp_path / "rows.csv"
    binary.write_bytes(b"a\n\xff\n")
    twice = tmp_path / "twice.csv"
    twice.write_text("a,b,a\n1,2,3\n")
    rows = tmp_path / "rows-1.csv"
    rows.write_text("a,b\n1,2\n")
    asked = ["--url", gateway.url]
    for arguments, code, said in (
        (["affine", "-i", twice, *asked], 2, "twice.csv: the table has the column 'a'"),
        (["affine", "-i", rows, "--keep", "c", *asked], 2, "rows-1.csv are a, b"),
        (["affine", "-i", tmp_path, "--keep", "a", *asked], 2, "has no columns for"),
        (["affine", "-i", tmp_path, "--column", "a", *asked], 2, "has no columns for"),
        (["affine", "-i", source, "-o", "/dev/null", *asked], 2, "not a regular file"),
        (["affine", "-i", source, "-o", tmp_path, *asked], 2, "not a regular file"),
        (["", "-i", source, *asked], 2, "does not describe the inputs of the model ''"),
        (["affine", "-i", "none.csv", *asked], 2, "no such file"),
        (["affine", "-i", "rows.xml", *asked], 2, "expected .csv, .jsonl"),
        (["affine", "-i", binary, *asked], 2, "rows.csv: not UTF-8: invalid start"),
        (["affine", "-i", source, "--url", "ftp://x"], 2, "ftp://x: expected http"),
        (["affine", "-i", source, "-o", "/none/x.jsonl", *asked], 2, "no such folder"),
        (["none", "-i", source, *asked], 1, "unknown model"),
        (["\udcff", "-i", source, *asked], 2, "name '\\udcff' is not valid Unicode"),
        (["affine", "-i", source, "--url", "http://127.0.0.1:1"], 1, "no connection"),
    ):
        done = popgate("batch", *arguments)
        assert said in done.err
        assert done.code == code
        for left in tmp_path.glob("rows.jsonl.results*"):
            left.unlink()
