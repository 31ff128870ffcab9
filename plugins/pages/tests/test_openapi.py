"""The OpenAPI document: complete, in our form of error, and valid YAML.

Covers: plugins/pages/src/popgate_pages/commands.py,
plugins/pages/src/popgate_pages/document.py,
plugins/pages/src/popgate_pages/examples.py,
plugins/pages/src/popgate_pages/programs.py,
plugins/pages/src/popgate_pages/yaml_text.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from app.api.examples import example_request, shown_shape
from app.api.plugin_routes import plugin_routes
from app.config.model_config import ModelConfig
from app.http.access import key_group
from app.main import ROUTERS, methods_by_path
from app.repository.records import LoadedModel
from app.repository.source import VersionSource
from app.settings import Settings
from app.spec import ModelSpec, TensorSpec
from engine import ModelRunner
from popgate_pages.document import document_with_models
from popgate_pages.examples import example_oip_request
from popgate_pages.openapi import openapi_document
from popgate_pages.routes import routes
from popgate_pages.yaml_text import to_yaml
from tests.app.cli.calls import Call
from tests.app.served import ROOT, Serve

DIGITS = ROOT / "examples" / "digits" / "digits.onnx"

# Lone surrogates are no text in JSON either.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=20,
)


@settings(deadline=None)
@given(VALUES)
def test_yaml_says_the_same(value: Any) -> None:
    assert yaml.safe_load(to_yaml(value)) == value


@pytest.mark.parametrize("key", ["no", "on", "y", "1", "~", "null", "a: b", "", "#"])
def test_odd_keys_stay_texts(key: str) -> None:
    assert yaml.safe_load(to_yaml({key: 1})) == {key: 1}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi_document()


def test_openapi_is_the_file_of_the_repository(popgate: Call) -> None:
    printed = popgate("openapi")
    assert (printed.code, printed.err) == (0, "")
    kept = (ROOT / "openapi.yaml").read_text()
    # The version of an installed package may be ahead of or behind the tree's.
    shown, expected = yaml.safe_load(printed.out), yaml.safe_load(kept)
    shown["info"].pop("version")
    expected["info"].pop("version")
    if shown != expected:
        pytest.fail("run: popgate openapi > openapi.yaml")
    assert json.loads(popgate("openapi", "--json").out) == yaml.safe_load(printed.out)


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        found = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return found.union(*(references(item) for item in node.values()))
    if isinstance(node, list):
        return set().union(*(references(item) for item in node))
    return set()


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    components = document["components"]
    assert {r.removeprefix("#/components/") for r in references(document)} <= {
        f"{kind}/{name}" for kind, named in components.items() for name in named
    }
    assert "HTTPValidationError" not in components["schemas"]


def test_what_the_paths_take_is_known_without_the_document(
    document: dict[str, Any],
) -> None:
    added = [one.router for one in plugin_routes(Settings())]
    known = methods_by_path([*ROUTERS, *added])
    assert {
        path: {method.lower() for method in methods}
        for path, methods in known.items()
        if path in document["paths"]
    } == {path: set(operations) for path, operations in document["paths"].items()}


def test_every_error_has_our_form(document: dict[str, Any]) -> None:
    """But for operations of plugins, which write errors as their clients expect."""
    added = [one.router for one in plugin_routes(Settings())]
    own = methods_by_path([routes(Settings()).router])
    others = methods_by_path(added).keys() - own.keys()
    for path, operations in document["paths"].items():
        if path in others:
            continue
        for operation in operations.values():
            for status, response in operation["responses"].items():
                if int(status) < 400 or path.endswith(("/health/ready", "/startup")):
                    continue
                schema = response["content"]["application/json"]["schema"]
                assert schema["$ref"].endswith("/ErrorBody"), (path, status)


def test_every_operation_is_explained_and_named(document: dict[str, Any]) -> None:
    operations = [o for p in document["paths"].values() for o in p.values()]
    assert all(o["summary"] and o["tags"] for o in operations)
    names = [o["operationId"] for o in operations]
    assert len(set(names)) == len(names)


def test_every_operation_of_the_design_is_there(document: dict[str, Any]) -> None:
    expected = {
        "/v1/models", "/v1/models/{name}", "/v1/models/{name}/infer",
        "/v1/models/{name}/versions/{version}/infer", "/v1/models/{name}/load",
        "/v1/models/{name}/unload", "/v1/models/{name}/stats", "/v1/devices",
        "/v1/health/live", "/v1/health/ready", "/metrics", "/v2", "/v2/health/live",
        "/v2/health/ready", "/v2/models/{name}", "/v2/models/{name}/ready",
        "/v2/models/{name}/config", "/v2/models/{name}/stats", "/v2/models/stats",
        "/v2/models/{name}/infer", "/v2/repository/index",
        "/v2/repository/models/{name}/load", "/v2/repository/models/{name}/unload",
    }  # fmt: skip
    assert set(document["paths"]) >= expected


def test_management_says_who_may(document: dict[str, Any]) -> None:
    for path in ("/v1/models/{name}/load", "/v2/repository/models/{name}/unload"):
        operation = document["paths"][path]["post"]
        assert {"401", "403"} <= set(operation["responses"])
        assert operation["security"] == [{"apiKey": []}, {}]


def test_every_call_that_may_need_a_key_takes_one(document: dict[str, Any]) -> None:
    """Clients that are generated from the document send a key only where it says so."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            needs = key_group(path, method.upper()) is not None
            assert ("security" in operation) is needs, (method, path)
            assert ({"401", "403"} <= set(operation["responses"])) is needs, path


OF_ANY = {"X-Request-Id", "traceparent"}
OF_DEADLINE = {*OF_ANY, "X-Request-Timeout", "Content-Encoding"}
OF_INFER = {*OF_DEADLINE, "Accept-Encoding", "Inference-Header-Content-Length"}


def headers(operation: dict[str, Any]) -> set[str]:
    given = [each.get("$ref", "") for each in operation["parameters"]]
    return {ref.rpartition("/")[2] for ref in given if ref}


def test_operations_name_the_headers_that_they_read(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        for operation in operations.values():
            expected = OF_DEADLINE if "504" in operation["responses"] else OF_ANY
            if path.endswith("/infer"):
                expected = OF_INFER
            assert headers(operation) == expected, path


def test_metrics_have_two_formats(document: dict[str, Any]) -> None:
    content = document["paths"]["/metrics"]["get"]["responses"]["200"]["content"]
    assert set(content) == {"text/plain", "application/openmetrics-text"}


def test_outputs_may_be_names(document: dict[str, Any]) -> None:
    schema = document["components"]["schemas"]["InferenceRequest"]
    items = schema["properties"]["outputs"]["anyOf"][0]["items"]["anyOf"]
    assert {"type": "string"} in items


def test_without_models_it_is_the_document_itself(document: dict[str, Any]) -> None:
    assert document_with_models(document, []) == document


def spec(*inputs: TensorSpec, batch: int = 0) -> ModelSpec:
    output = TensorSpec.make("y", "FP32", [-1])
    return ModelSpec("m", "1", inputs, (output,), batch)


def test_examples_fit_their_shapes() -> None:
    model = spec(
        TensorSpec.make("a", "FP32", [-1, 2]),
        TensorSpec.make("b", "INT64", []),
        TensorSpec.make("c", "BYTES", [2]),
        TensorSpec.make("d", "BOOL", [1, -1]),
        TensorSpec.make("e", "UINT8", [0, 3]),
        TensorSpec.make("f", "BF16"),
    )
    assert example_request(model) == {
        "inputs": {
            "a": [[1.0, 1.0]], "b": 1, "c": ["1", "1"], "d": [[True]],
            "e": [], "f": [1.0],
        }
    }  # fmt: skip
    oip = example_oip_request(model)
    assert oip is not None
    shapes = {i["name"]: (i["shape"], len(i["data"])) for i in oip["inputs"]}
    assert shapes == {
        "a": ([1, 2], 2), "b": ([], 1), "c": ([2], 2), "d": ([1, 1], 1),
        "e": ([0, 3], 0), "f": ([1], 1),
    }  # fmt: skip
    assert example_request(model, {"b": 5})["inputs"]["b"] == 5  # type: ignore[index]


def test_a_compiled_batch_is_shown_free() -> None:
    tensor = TensorSpec.make("a", "FP32", [8, 3])
    assert shown_shape(spec(tensor, batch=8), tensor) == [-1, 3]
    assert shown_shape(spec(tensor), tensor) == [8, 3]


def test_no_example_where_it_would_fill_the_page() -> None:
    model = spec(TensorSpec.make("image", "FP32", [-1, 3, 224, 224]))
    assert example_request(model) is None
    assert example_oip_request(model) is None


def test_a_page_about_images_stays_small() -> None:
    """The browser shows examples as text, and makes some up where there is none."""
    image = TensorSpec.make("image", "FP32", [-1, 3, 224, 224])
    mask = TensorSpec.make("mask", "FP32", [1, 224, 224])
    loaded = loaded_model(ModelSpec("m", "1", (image,), (mask,)))
    base = openapi_document()
    document = document_with_models(base, [loaded])
    operation = document["paths"]["/v1/models/m/infer"]["post"]
    assert headers(operation) == OF_INFER
    body = operation["requestBody"]["content"]
    assert next(iter(body)) == "application/x-npy"
    assert next(iter(operation["responses"]["200"]["content"])) == "application/x-npy"
    short = body["application/json"]["examples"]["short"]["value"]
    assert short == {"inputs": {"image": "… FP32[-1,3,224,224] …"}}
    assert "minItems" not in json.dumps(body["application/json"])
    assert len(json.dumps(operation)) < 20_000
    two = loaded_model(ModelSpec("m", "1", (image, mask), (mask,)))
    document = document_with_models(base, [two])
    operation = document["paths"]["/v1/models/m/infer"]["post"]
    assert next(iter(operation["requestBody"]["content"])) == "application/json"


def loaded_model(spec: ModelSpec) -> LoadedModel:
    runner = cast("ModelRunner", None)
    source = VersionSource(1)
    return LoadedModel(spec, runner, ModelConfig(), source, 0, 0.0, warmed=True)


def test_examples_have_run(serve: Serve) -> None:
    """Sizes are tried until one works, and values that a file gives are taken."""

    def fill(root: Path) -> None:
        node, value = helper.make_node, helper.make_tensor_value_info
        rows = numpy_helper.from_array(np.array([-1, 32]), "rows")
        graph = helper.make_graph(
            [node("Reshape", ["x", "rows"], ["y"])],
            "g",
            [value("x", TensorProto.FLOAT, ["samples"])],
            [value("y", TensorProto.FLOAT, ["frames", 32])],
            [rows],
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        )
        onnx.save(model, root / "frames.onnx")
        shutil.copy(DIGITS, root)

    gateway = serve(fill)
    for name, digit in (("frames", None), ("digits", 2)):
        example = gateway.client.get(f"/v1/models/{name}").json()["example"]
        answer = gateway.client.post(f"/v1/models/{name}/infer", json=example)
        assert answer.status_code == 200, answer.text
        found = {o["name"]: o["data"] for o in answer.json()["outputs"]}
        assert digit is None or found["digit"] == [digit]
        paths = gateway.client.get("/openapi.json").json()["paths"]
        shown = paths[f"/v1/models/{name}/infer"]["post"]
        assert "were not tried" not in shown["description"]
        assert f"[client.py](v1/models/{name}/client.py)" in shown["description"]
        assert gateway.client.get(f"/v1/models/{name}/client.py").status_code == 200
    assert "warm-up" not in gateway.output
