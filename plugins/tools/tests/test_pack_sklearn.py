"""Pipelines that were fitted on a DataFrame: packed, served, asked in every way.

Covers: plugins/tools/src/popgate_tools/pack_sklearn.py,
plugins/tools/src/popgate_tools/pack_columns.py,
plugins/tools/src/popgate_tools/packed.py.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from popgate import Client, ModelRunner
from popgate.client import InvalidRequest
from tests.app.cli.calls import Call
from tests.app.served import ServedGateway, run_popgate

joblib = pytest.importorskip("joblib", reason="scikit-learn is not installed")
pd = pytest.importorskip("pandas", reason="pandas is not installed")

ROWS = 400
CITIES = ["Bonn", "Köln", "São Paulo"]
JOBS = ['cook, "chef"', "smith", None]


@dataclass(frozen=True)
class Table:
    """A pipeline on a table with gaps and strings, and what it says of the table."""

    frame: Any
    labels: list[str]
    chances: Any
    served: ServedGateway
    model: Path


def columns_of_people(rng: np.random.Generator) -> dict[str, Any]:
    income = np.round(rng.random(ROWS) * 1e5, 2)
    return {
        "age": rng.integers(18, 80, ROWS),
        "income": np.where(rng.random(ROWS) < 0.06, np.nan, income),
        "city": rng.choice(CITIES, ROWS),
        "job title": rng.choice(np.array(JOBS, object), ROWS, p=[0.5, 0.4, 0.1]),
        "member": rng.random(ROWS) < 0.5,
    }


def fitted(frame: Any, **more: Any) -> Any:
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    rng = np.random.default_rng(1)
    columns = ColumnTransformer(
        [
            (
                "numbers",
                make_pipeline(SimpleImputer(), StandardScaler()),
                ["age", "income"],
            ),
            (
                "texts",
                make_pipeline(
                    SimpleImputer(strategy="most_frequent"),
                    OneHotEncoder(**{"handle_unknown": "ignore", **more}),
                ),
                ["city", "job title"],
            ),
        ],
        remainder="passthrough",
    )
    pipeline = make_pipeline(columns, GradientBoostingClassifier(n_estimators=10))
    return pipeline.fit(frame, rng.choice(["no", "yes"], len(frame)))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    folder = tmp_path_factory.mktemp("table")
    frame = pd.DataFrame(columns_of_people(np.random.default_rng(0)))
    assert frame["income"].isna().sum() > 10
    assert frame["job title"].isna().sum() > 10
    pipeline = fitted(frame)
    joblib.dump(pipeline, folder / "people.joblib")
    frame.to_csv(folder / "people.csv", index=False)
    done = run_popgate(
        "pack", "sklearn", folder / "people.joblib", "-o", folder / "models" / "people",
        "--sample", folder / "people.csv",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"member": "BOOL[-1]"' in done.stdout
    model = folder / "models" / "people" / "1" / "model.py"
    assert '"São Paulo"' in model.read_text(encoding="utf-8")
    with ServedGateway(folder / "models", "--allow-python") as served:
        served.wait_ready()
        labels, chances = pipeline.predict(frame), pipeline.predict_proba(frame)
        yield Table(frame, labels.tolist(), chances, served, model)


def records_of(frame: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(frame.to_json(orient="records"))
    return found


def post(table: Table, path: str, body: Any) -> Any:
    response = table.served.client.post(f"/v1/models/people{path}", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def check(table: Table, labels: Any, chances: Any) -> None:
    texts = [each.decode() if isinstance(each, bytes) else each for each in labels]
    assert texts == table.labels
    found = np.asarray(chances, np.float64).reshape(table.chances.shape)
    assert np.array_equal(found, table.chances)


def check_predictions(table: Table, predictions: Any) -> None:
    labels = [row["label"] for row in predictions]
    check(table, labels, [row["probabilities"] for row in predictions])


def test_loading_says_nothing_bad(table: Table) -> None:
    assert "Traceback" not in table.served.output
    assert "WARNING" not in table.served.output


def test_json_columns(table: Table) -> None:
    records = records_of(table.frame)
    inputs = {name: [row[name] for row in records] for name in table.frame.columns}
    inputs["job title"] = [job or "" for job in inputs["job title"]]
    found = table.served.infer("people", **inputs)
    check(table, found["label"], found["probabilities"])
    inputs["job title"][0] = None
    path = "/v1/models/people/infer"
    response = table.served.client.post(path, json={"inputs": inputs})
    assert response.status_code == 400
    assert 'send "" for a gap' in response.json()["error"]


def test_predict_takes_records(table: Table) -> None:
    records = [
        {**r, "job title": r["job title"] or ""} for r in records_of(table.frame)
    ]
    found = post(table, ":predict", {"instances": records})
    check_predictions(table, found["predictions"])
    columns = {name: [row[name] for row in records] for name in table.frame.columns}
    outputs = post(table, ":predict", {"inputs": columns})["outputs"]
    check(table, outputs["label"], outputs["probabilities"])


def test_invocations_take_tables(table: Table) -> None:
    records = records_of(table.frame)
    split = json.loads(table.frame.to_json(orient="split"))
    for body in ({"dataframe_records": records}, {"dataframe_split": split}):
        found = post(table, "/invocations", body)["predictions"]
        check_predictions(table, found)
    text = table.frame.to_csv(index=True)  # a column that nothing takes
    headers = {"content-type": "text/csv"}
    response = table.served.client.post("/invocations", content=text, headers=headers)
    assert response.status_code == 200, response.text
    check_predictions(table, response.json()["predictions"])


def test_clients_take_frames_and_records(table: Table) -> None:
    records = records_of(table.frame)
    with Client(table.served.url) as client:
        for value in (table.frame, records, table.frame.convert_dtypes()):
            found = client.infer("people", value)
            check(table, found["label"], found["probabilities"])
        one = client.infer("people", [records[0]])
        assert [each.decode() for each in one["label"]] == table.labels[:1]
        with pytest.raises(InvalidRequest):
            client.infer("people", 1.0)


def test_clients_take_arrow_tables(table: Table) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    with Client(table.served.url) as client:
        found = client.infer("people", pyarrow.Table.from_pandas(table.frame))
    check(table, found["label"], found["probabilities"])


def test_batch_takes_csv(table: Table, tmp_path: Path) -> None:
    table.frame.to_csv(tmp_path / "people.csv", index=False)
    check_batch(table, tmp_path / "people.csv")


def test_batch_takes_parquet(table: Table, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table.frame.to_parquet(tmp_path / "people.parquet")
    check_batch(table, tmp_path / "people.parquet")


def check_batch(table: Table, source: Path) -> None:
    url = table.served.url
    done = run_popgate("batch", "people", "-i", source, "--url", url)
    assert done.returncode == 0, done.stderr
    lines = source.with_name(f"{source.name}.results.jsonl").read_text().splitlines()
    rows = sorted(map(json.loads, lines), key=lambda row: row["row"])
    check_predictions(table, [row["outputs"] for row in rows])


def test_popgate_infer(table: Table, tmp_path: Path) -> None:
    records, arguments = records_of(table.frame), []
    for name in table.frame.columns:
        values = [row[name] for row in records]
        if name == "job title":
            values = [value or "" for value in values]
        arguments += ["--input", f"{name}={json.dumps(values)}"]
    files = {name: tmp_path / f"{name}.npy" for name in ("label", "probabilities")}
    for name, file in files.items():
        arguments += ["--output", f"{name}={file}"]
    done = run_popgate("infer", "people", *arguments, "--url", table.served.url)
    assert done.returncode == 0, done.stderr
    check(table, np.load(files["label"]).tolist(), np.load(files["probabilities"]))


def test_the_runner_takes_the_file(table: Table) -> None:
    with ModelRunner(table.model) as runner:
        for value in (table.frame, records_of(table.frame)):
            found = runner.execute(value)
            check(table, found["label"], found["probabilities"])


def test_types_without_a_sample(table: Table, tmp_path: Path) -> None:
    """Encoders and imputers say which columns are strings; the rest are numbers."""
    frame = table.frame.drop(columns=["member"])
    file = tmp_path / "people.joblib"
    pipeline = fitted(frame, handle_unknown="error")
    joblib.dump(pipeline, file)
    root = tmp_path / "models"
    done = run_popgate("pack", "sklearn", file, "-o", root / "people")
    assert done.returncode == 0, done.stderr
    assert "does not say the types of age, income" in done.stdout
    with ServedGateway(root, "--allow-python") as served:
        served.wait_ready()
        text = io.StringIO()
        frame.to_csv(text, index=False, quoting=csv.QUOTE_ALL)
        headers = {"content-type": "text/csv"}
        url = "/invocations"
        found = served.client.post(url, content=text.getvalue(), headers=headers)
        assert found.status_code == 200, found.text
        labels = [row["label"] for row in found.json()["predictions"]]
        assert labels == pipeline.predict(frame).tolist()
        with Client(served.url) as client:
            unknown = {"age": [30], "income": [1.0], "city": ["Rom"], "job title": [""]}
            with pytest.raises(InvalidRequest, match="unknown categories"):
                client.infer("people", unknown)


def test_what_cannot_work_is_refused(popgate: Call, tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

    frame = pd.DataFrame({"a": ["x", "y"] * 4, "when": pd.to_datetime(["2020"] * 8)})
    kinds = [0, 1] * 4
    lengths = FunctionTransformer(lambda_free)
    for name, model, words in (
        ("scaler", StandardScaler().fit([[1.0]]), "has no predict"),
        (
            "function",
            make_pipeline(lengths, LogisticRegression()).fit(frame[["a"]], kinds),
            "unknown because of FunctionTransformer; --sample FILE",
        ),
        (
            "unnamed",
            make_pipeline(OneHotEncoder(), LogisticRegression()).fit(
                frame[["a"]].to_numpy(), kinds
            ),
            "hold strings and have no names; fit the pipeline on a DataFrame",
        ),
    ):
        file = tmp_path / f"{name}.joblib"
        joblib.dump(model, file)
        done = popgate("pack", "sklearn", file, "-o", tmp_path / name)
        assert done.code == 1, (name, done.out)
        assert words in done.err
        assert not (tmp_path / name).exists()
    frame.to_csv(tmp_path / "rows.csv", index=False)
    file = tmp_path / "function.joblib"
    for sample, words in (
        (tmp_path / "rows.txt", "expected .csv, .parquet or .jsonl"),
        (tmp_path / "no.csv", "no.csv"),
    ):
        arguments = ("pack", "sklearn", file, "--sample", sample)
        done = popgate(*arguments, "-o", tmp_path / "m")
        assert done.code == 2
        assert words in done.err


def lambda_free(frame: Any) -> Any:
    """Lengths of strings; a pickle names it by its module."""
    return frame.map(len)
