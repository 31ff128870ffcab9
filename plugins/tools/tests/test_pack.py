"""`popgate pack`: what it writes is served, and gives what the library gives."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.app.cli.calls import Call
from tests.app.served import ServedGateway

RNG = np.random.default_rng(0)
ROWS = RNG.random((60, 4))
COLUMNS = ["a", "sepal length (cm)", 'the "c"', "class"]
KINDS = (ROWS.sum(1) > 2).astype(np.int64)


def pack(popgate: Call, kind: str, file: Path, out: Path) -> str:
    # In this process, which has the library already; test_pack_sklearn.py starts one.
    done = popgate("pack", kind, file, "-o", out)
    assert done.code == 0, done.err
    return done.out


def serve(root: Path) -> ServedGateway:
    return ServedGateway(root, "--allow-python").wait_ready()


def test_estimators_and_pipelines_of_scikit_learn(
    popgate: Call, tmp_path: Path
) -> None:
    joblib = pytest.importorskip("joblib", reason="scikit-learn is not installed")
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    root = tmp_path / "models"
    numbers = make_pipeline(StandardScaler(), LogisticRegression()).fit(ROWS, KINDS)
    texts = make_pipeline(CountVectorizer(), LogisticRegression())
    texts.fit(["good", "bad", "good good", "bad bad"], ["yes", "no", "yes", "no"])
    line = LinearRegression().fit(ROWS, ROWS.sum(1))
    for name, model in (("numbers", numbers), ("texts", texts), ("line", line)):
        joblib.dump(model, tmp_path / f"{name}.joblib")
        said = pack(popgate, "sklearn", tmp_path / f"{name}.joblib", root / name)
        assert "--allow-python" in said
    text = (root / "numbers" / "1" / "model.py").read_text()
    assert "trust it like this one" in text
    assert len(text.splitlines()) < 30
    with serve(root) as gateway:
        some = ROWS[:5]
        found = gateway.infer("numbers", x=some.tolist())
        assert found["label"] == numbers.predict(some).tolist()
        expected = numbers.predict_proba(some).ravel()
        assert np.allclose(found["probabilities"], expected)
        assert gateway.infer("texts", text=["good", "bad"])["label"] == ["yes", "no"]
        output = gateway.infer("line", x=some.tolist())["output"]
        assert np.allclose(output, line.predict(some))


def test_boosters_of_lightgbm(popgate: Call, tmp_path: Path) -> None:
    lightgbm = pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    data = lightgbm.Dataset(ROWS, KINDS)
    options = {"objective": "binary", "verbose": -1, "min_data_in_leaf": 2}
    model = lightgbm.train(options, data, 3)
    model.save_model(tmp_path / "m.txt")
    _check(popgate, "lightgbm", tmp_path / "m.txt", model.predict(ROWS[:5]))


def test_boosters_of_xgboost(popgate: Call, tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    data = xgboost.DMatrix(ROWS, KINDS)
    model = xgboost.train({"objective": "multi:softprob", "num_class": 2}, data, 3)
    model.save_model(tmp_path / "m.json")
    _check(
        popgate,
        "xgboost",
        tmp_path / "m.json",
        model.predict(xgboost.DMatrix(ROWS[:5])),
    )


def test_estimators_of_xgboost(popgate: Call, tmp_path: Path) -> None:
    """With named columns, one of categories, and rounds after the best one."""
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    kinds = pd.Categorical.from_codes(KINDS, ["a", "b"])
    frame = pd.DataFrame({"the length": ROWS[:, 0], "kind": kinds})
    noise, some = RNG.random(60), frame[:20]
    model = xgboost.XGBRegressor(
        n_estimators=50, early_stopping_rounds=3, enable_categorical=True
    )
    model.fit(some, noise[:20], eval_set=[(frame[20:], noise[20:])], verbose=False)
    assert model.best_iteration + 1 < model.get_booster().num_boosted_rounds()
    model.save_model(tmp_path / "m.json")
    rows = np.column_stack([ROWS[:5, 0], KINDS[:5]])
    _check(popgate, "xgboost", tmp_path / "m.json", model.predict(frame[:5]), rows)


def _check(
    popgate: Call, kind: str, file: Path, expected: Any, rows: Any = ROWS[:5]
) -> None:
    root = file.parent / "models"
    pack(popgate, kind, file, root / "m")
    with serve(root) as gateway:
        found = gateway.infer("m", x=rows.tolist())["output"]
        assert np.allclose(found, np.ravel(expected), atol=1e-6)


def test_exported_programs_of_torch(popgate: Call, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rows = torch.export.Dim("rows")
    model = torch.nn.Linear(4, 2)
    given = torch.ones(3, 4)
    program = torch.export.export(model, (given,), dynamic_shapes=({0: rows},))
    torch.export.save(program, tmp_path / "m.pt2")
    root = tmp_path / "models"
    said = pack(popgate, "torch", tmp_path / "m.pt2", root / "m")
    assert "FP32[-1,4]" in said
    with serve(root) as gateway:
        (found,) = gateway.infer("m", input=given.tolist()).values()
        assert np.allclose(found, model(given).detach().ravel(), atol=1e-6)


def test_models_of_mlflow(popgate: Call, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    from sklearn.linear_model import LinearRegression

    root = tmp_path / "models"
    frame = pandas.DataFrame(ROWS, columns=COLUMNS)
    both = np.stack([ROWS.sum(1), ROWS.max(1)], axis=1)
    # Columns to one number a row, and a tensor to another.
    for name, rows, wanted in (("m", frame, ROWS.sum(1)), ("t", ROWS, both)):
        model = LinearRegression().fit(rows, wanted)
        signature = mlflow.models.infer_signature(rows, model.predict(rows))
        mlflow.sklearn.save_model(model, tmp_path / name, signature=signature)
        pack(popgate, "mlflow", tmp_path / name, root / name)
    bare = LinearRegression().fit(ROWS, both)
    mlflow.sklearn.save_model(bare, tmp_path / "bare")
    done = popgate("pack", "mlflow", tmp_path / "bare", "-o", root / "bare")
    assert (done.code, "has no signature" in done.err) == (2, True)
    with serve(root) as gateway:
        columns = {name: frame[name][:5].tolist() for name in COLUMNS}
        found = gateway.infer("m", **columns)["output"]
        assert np.allclose(found, ROWS[:5].sum(1))
        found = gateway.infer("t", x=ROWS[:5].tolist())["output"]
        assert np.allclose(found, bare.predict(ROWS[:5]).ravel())


def test_what_cannot_be_packed_is_said(popgate: Call, tmp_path: Path) -> None:
    file = tmp_path / "m.joblib"
    for arguments, said in (
        (("pickle", file), "KIND 'pickle' is unknown; expected one of sklearn"),
        (("sklearn", file), "m.joblib: no such file"),
    ):
        done = popgate("pack", *arguments)
        assert done.code == 2
        assert said in done.err
    file.write_text("no pickle")
    out = tmp_path / "models" / "m"
    done = popgate("pack", "sklearn", file, "-o", out)
    assert done.code == 1
    assert "m.joblib cannot be loaded as a model of sklearn: " in done.err
    assert not out.exists()
    (out / "1").mkdir(parents=True)
    shutil.copy(file, out / "1" / "model.py")
    done = popgate("pack", "sklearn", file, "-o", out)
    assert "exists already" in done.err
