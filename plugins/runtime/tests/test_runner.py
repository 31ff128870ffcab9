"""`popgate.ModelRunner`: ONNX files, lists, single arrays, awaited results."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from popgate import EngineError, InvalidInput, ModelRunner
from tests.engine import models

ROW = [1.0, 2.0, 3.0, 4.0]
AFFINE = [3.0, 5.0, 7.0, 9.0]


def test_texts(tmp_path: Path) -> None:
    with ModelRunner(str(models.text(tmp_path / "text.popef"))) as runner:
        (output,) = runner.execute(["hello", "Köln"]).values()
        assert [text.decode() for text in output] == ["hello!", "Köln!"]


def test_results_are_awaited_while_other_tasks_run(tmp_path: Path) -> None:
    async def ask(runner: ModelRunner, n: int) -> float:
        outputs = await runner.execute_async([[float(n)] * 3 + [0.0]])
        return float(outputs["output"][0, 0])

    async def ask_all(runner: ModelRunner) -> list[float]:
        return await asyncio.gather(*(ask(runner, n) for n in range(20)))

    with ModelRunner(models.affine(tmp_path / "m.popef")) as runner:
        assert asyncio.run(ask_all(runner)) == [1.0 + 2 * n for n in range(20)]
        result = runner.execute_async([ROW])
        assert result.wait(60)
        assert dict(result)["output"].tolist() == [AFFINE]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([[1.0, 2.0], [3.0]], "its lists are nested unevenly"),
        ([["a"] * 4], "input 'input' must be F32, got"),
        ([[True, "x", 1, 2]], "input 'input' must be F32, got"),
        ({"no": [ROW]}, "no"),
        ([1.0, 2.0], "input"),
        ([1e39, 0.0, 0.0, 0.0], "a finite number is too large for F32"),
    ],
)
def test_mistakes_are_errors_of_the_engine(
    tmp_path: Path, inputs: object, words: str
) -> None:
    with (
        ModelRunner(models.affine(tmp_path / "m.popef")) as runner,
        pytest.raises(EngineError, match=words),
    ):
        runner.execute(inputs)


def integers(folder: Path) -> Path:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 20]>
        m (int8[n,1] small, int64[n,1] whole, uint64[n,1] large, double[n,1] real)
        => (int8[n,1] a, int64[n,1] b, uint64[n,1] c, double[n,1] d)
        { a = Identity(small)
          b = Identity(whole)
          c = Identity(large)
          d = Identity(real) }""")
    onnx.save(model, folder / "integers.onnx")
    return folder / "integers.onnx"


def test_numbers_that_a_type_cannot_hold(tmp_path: Path) -> None:
    fits = {"small": [-128], "whole": [2**63 - 1], "large": [2**64 - 1], "real": [1]}
    wrong: list[tuple[str, object, str]] = [
        ("small", [300], "300 is out of range for S8"),
        ("small", np.array([1, -129]), "-129 is out of range for S8"),
        ("small", [10**30], f"{10**30} is out of range for S8"),
        ("small", [None], "must be S8, got NoneType"),
        ("small", [1.0], "must be S8, got F64"),
        ("whole", np.array([2**63], np.uint64), f"{2**63} is out of range for S64"),
        ("large", [-1], "-1 is out of range for U64"),
        ("real", [10**400], "a finite number is too large for F64"),
        ("real", [object()], "must be F64, got object"),
        ("real", np.ma.array([1, 2], mask=[False, True]), "has masked values"),
    ]
    with ModelRunner(integers(tmp_path)) as runner:
        found = runner.execute(fits | {"real": np.ma.array([1.0], mask=[False])})
        assert [each.item() for each in found.values()] == [
            -128,
            2**63 - 1,
            2**64 - 1,
            1,
        ]
        rows = runner.execute({name: [[1], [1 << 6]] for name in fits})
        assert {each.sum() for each in rows.values()} == {65}
        for name, value, words in wrong:
            with pytest.raises(InvalidInput, match=rf"'{name}'.*{words}"):
                runner.execute(fits | {name: value})


def test_several_inputs_need_names(tmp_path: Path) -> None:
    with (
        ModelRunner(models.simple(tmp_path)) as runner,
        pytest.raises(EngineError, match="has 2 inputs; give values by name"),
    ):
        runner.execute([1.0])


def buyers(folder: Path) -> Path:
    """Columns of every kind, as a table's model has them."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 20]>
        buyers (float[n,1] age, double[n,1] income) => (double[n,1] sum)
        { wide = Cast <to = 11> (age)
          sum = Add(wide, income) }""")
    return models.write_graph(folder / "buyers.popef", model, "rows")


def test_columns_tables_and_plain_numbers(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    records = [{"age": 25, "income": 1.5}, {"age": 32, "income": None}]
    frame = pandas.DataFrame(records)
    with ModelRunner(buyers(tmp_path)) as runner:
        columns = {"age": [25, 32], "income": [1.5, None]}
        for given in (records, frame, columns, dict(frame)):
            (found,) = runner.execute(given).values()
            np.testing.assert_array_equal(found, [[26.5], [np.nan]])
        (found,) = runner.execute({"age": 1, "income": 2}).values()
        assert found.tolist() == [[3]]
        with pytest.raises(EngineError, match="record 1 has not the same keys"):
            runner.execute([{"age": 1, "income": 2}, {"age": 1}])
    with ModelRunner(models.affine(tmp_path / "m.popef")) as runner:
        assert runner.execute(ROW)["output"].tolist() == [AFFINE]
        (wide,) = runner.execute(pandas.DataFrame([ROW], columns=list("abcd"))).values()
        assert wide.tolist() == [AFFINE]


def test_an_app_of_the_program_stays_its_own(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("MINE = True\n")
    code = "import popgate; popgate.ModelRunner; import app; print(app.MINE)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
