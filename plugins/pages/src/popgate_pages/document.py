"""The OpenAPI document in two forms: without models, and with the loaded models.

The first is the file `openapi.yaml` of the repository. The second is the document of a
running gateway. Every loaded model has an operation in it, with the schema of its
tensors and a working example.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import orjson
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from starlette.routing import BaseRoute

from app.about import VERSION
from app.api.dependencies import KEY_SCHEME
from app.api.examples import (
    MAX_EXAMPLE_ELEMENTS,
    example_parameters,
    example_request,
    shown_shape,
)
from app.api.plugin_routes import PluginRoutes
from app.api.request_bodies import REQUEST_BODIES
from app.api.schemas import REFERENCE, ErrorBody, InferenceRequest, error_response
from app.config.restrictions import group_of
from app.repository.records import LoadedModel
from app.spec import ModelSpec, TensorSpec, notation
from popgate_pages.examples import example_oip_request, is_large

_TITLE = "PopGate"
DESCRIPTION = """An open inference gateway.

Post tensors to a model as JSON, msgpack, the Open Inference Protocol's binary form or
`.npy`; get the answer in any of them. `/v2` is the Open Inference Protocol, for its
stock clients.
"""
NPY = "application/x-npy"
# More operations than this make the page slow and hard to search.
MAX_MODELS_SHOWN = 100

_TAGS = (
    ("inference", "Run a model by its name."),
    ("models", "List, describe, load and unload models."),
    ("devices", "The devices that run the models."),
    ("requests", "How the server answered recent requests."),
    ("health", "Checks for load balancers and supervisors."),
    ("metrics", "Metrics in Prometheus' formats."),
    (
        "open inference protocol",
        "The same operations under the standard's paths, `/v2`.",
    ),
)
# Schema and description of headers. OpenAPI describes Accept, Content-Type and keys
# elsewhere.
_HEADERS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "X-Request-Id": (
        {"type": "string"},
        "The id of the request: up to 128 characters of printable ASCII.",
    ),
    "traceparent": ({"type": "string"}, "The caller's span (W3C Trace Context)."),
    "X-Request-Timeout": (
        {"type": "number", "exclusiveMinimum": 0},
        "Seconds until the request fails with 504.",
    ),
    "Content-Encoding": (
        {"type": "string", "enum": ["gzip", "deflate", "identity"]},
        "How the body is compressed.",
    ),
    "Accept-Encoding": (
        {"type": "string"},
        "`gzip` or `deflate` compresses the response.",
    ),
    "Inference-Header-Content-Length": (
        {"type": "integer", "minimum": 0},
        "Bytes of JSON before binary tensors; 0: the body is the only input's tensor.",
    ),
}
# How many of these an operation reads: of any kind, with a deadline, with tensors.
_OF_ANY, _OF_DEADLINE, _OF_TENSORS = 2, 4, 6
_JSON_TYPES = {"f": "number", "i": "integer", "u": "integer", "b": "boolean"}
_LOADING = re.compile(r"/(load|unload)$")
_WRONG_KEY = {"401": "The API key is missing or wrong."}
_KEYED = {**_WRONG_KEY, "403": "The API key does not allow this call."}
_MANAGED = {**_WRONG_KEY, "403": "This client may not manage the server."}


def base_document(
    routes: Sequence[BaseRoute],
    restricted: Collection[str] = (),
    added: Sequence[PluginRoutes] = (),
) -> dict[str, Any]:
    """Return the document of an application with these routes, without its models.

    `restricted` are the groups of the API that need a header
    (`app/config/restrictions.py`). `added` are the routes of plugins.
    """
    tags = [*_TAGS, *(tag for one in added for tag in one.tags)]
    document = get_openapi(
        title=_TITLE,
        version=VERSION,
        description=DESCRIPTION,
        routes=routes,
        tags=[{"name": name, "description": text} for name, text in tags],
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    schemas = document["components"]["schemas"]
    # Bodies that routes read or write themselves, and so declare by reference only.
    for body in (InferenceRequest, ErrorBody):
        schema = body.model_json_schema(ref_template=REFERENCE)
        schemas.update(schema.pop("$defs", {}))
        schemas[body.__name__] = schema
    schemas.update(_body_schemas(body for one in added for body in one.bodies))
    document["components"]["parameters"] = {
        name: {"name": name, "in": "header", "schema": schema, "description": text}
        for name, (schema, text) in _HEADERS.items()
    }
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    behind = {path: before for one in added for path, before in one.behind.items()}
    document["paths"] = _in_order(document["paths"], behind)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if group_of(path) in restricted:
                refusal = error_response("A required header is missing.")
                operation["responses"]["403"] = refusal
            _finish_operation(path, operation)
    return document


def _body_schemas(added: Iterable[type]) -> dict[str, Any]:
    """Return the schemas of the bodies that routes read themselves, by name."""
    found: dict[str, Any] = {}
    for model in (*REQUEST_BODIES, *added):
        schema = TypeAdapter(model).json_schema(ref_template=REFERENCE)
        found.update(schema.pop("$defs", {}))
        found[model.__name__] = schema
    return found


def _in_order(paths: Mapping[str, Any], behind: Mapping[str, str]) -> dict[str, Any]:
    """Return `paths`, each of `behind` after the path that it belongs to."""
    ordered: dict[str, Any] = {}

    def add(path: str) -> None:
        ordered[path] = paths[path]
        for other, before in behind.items():
            if before == path and other in paths:
                add(other)

    for path in paths:
        if behind.get(path) not in paths:
            add(path)
    return ordered


def _finish_operation(path: str, operation: dict[str, Any]) -> None:
    """Add to an operation the error form, the required key and the headers, which
    FastAPI cannot know.
    """
    responses = operation["responses"]
    # Our path parameters are strings, which validation never refuses.
    if "HTTPValidationError" in orjson.dumps(responses.get("422", {})).decode():
        del responses["422"]
    errors = {}
    if "{name}" in path:
        errors["404"] = "The model or version does not exist."
    if path.startswith("/v2/models/{name}"):
        errors["503"] = "The model is not being served now."
    if "{request_id}" in path:
        errors["404"] = "The request is not among the last requests."
    if any(each["in"] == "query" for each in operation.get("parameters", ())):
        errors["400"] = "A query parameter is invalid."
    if "requestBody" in operation or _LOADING.search(path):
        errors["400"] = "The request is malformed, or the operation failed."
        errors["413"] = "The body is larger than allowed."
    if _LOADING.search(path):
        errors["503"] = "This server does not let clients load and unload models."
    if group_of(path) != "health":  # the only group that never needs a key
        is_managed = "security" in operation  # the dependency of management calls
        errors |= _MANAGED if is_managed else _KEYED
        operation["security"] = [{KEY_SCHEME: []}, {}]
    for status, text in errors.items():
        responses.setdefault(status, error_response(text))
    read = _OF_DEADLINE if "504" in responses else _OF_ANY
    names = list(_HEADERS)[: _OF_TENSORS if path.endswith("/infer") else read]
    operation.setdefault("parameters", []).extend(
        {"$ref": f"#/components/parameters/{name}"} for name in names
    )
    operation["responses"] = dict(sorted(responses.items()))
    for response in responses.values():
        # The documentation page shows the first media type. JSON is readable for
        # people.
        content = response.get("content", {})
        if "application/json" in content:
            first = {"application/json": content.pop("application/json")}
            response["content"] = first | content


def document_with_models(
    base: Mapping[str, Any],
    models: Iterable[LoadedModel],
    added: Sequence[PluginRoutes] = (),
) -> dict[str, Any]:
    """Return `base` with an operation for each of `models`, first in the page, and with
    the examples that `added` routes have for them.
    """
    models = list(models)
    if not models:
        return dict(base)
    document = {**base, "paths": {}}
    template = base["paths"]["/v1/models/{name}/infer"]["post"]
    for loaded in models[:MAX_MODELS_SHOWN]:
        path = f"/v1/models/{quote(loaded.spec.name)}/infer"
        document["paths"][path] = {"post": _model_operation(template, loaded)}
    document["paths"].update(base["paths"])
    for loaded in models[:MAX_MODELS_SHOWN]:
        for one in added:
            for path, body in one.examples(loaded.spec).items():
                _add_example(document["paths"], path, loaded.spec.name, body)
        _add_routes(document, loaded)
    text = f"{len(models)} loaded."
    if len(models) > MAX_MODELS_SHOWN:
        text += f" The first {MAX_MODELS_SHOWN} are shown; GET /v1/models lists all."
    tag = {"name": "loaded models", "description": text}
    document["tags"] = [tag, *base["tags"]]
    return document


def _add_example(paths: dict[str, Any], path: str, name: str, body: Any) -> None:
    """Add a request body that model `name` accepts to the operation of `path`.

    The operation is copied first, because the base document must stay without models.
    """
    item = paths[path] = copy.deepcopy(paths[path])
    operation = item["post"]
    content = operation["requestBody"]["content"]["application/json"]
    content.setdefault("examples", {})[name] = {"summary": name, "value": body}
    for parameter in operation.get("parameters", ()):
        if parameter.get("name") == "name":
            parameter.setdefault("examples", {})[name] = {"value": name}


def _add_routes(document: dict[str, Any], loaded: LoadedModel) -> None:
    """Add the model's own routes, as its process describes them."""
    name, described = loaded.spec.name, loaded.routes.document
    if not described:
        return
    # Two models may name a schema alike.
    start = REFERENCE.format(model="").encode()
    text = orjson.dumps(described).replace(start, start + f"{name}.".encode())
    renamed = orjson.loads(text)
    for path, operations in renamed["paths"].items():
        for operation in operations.values():
            operation["tags"] = [name]
            operation["operationId"] = f"{name}_{operation.get('operationId', '')}"
        document["paths"].setdefault(path, operations)
    schemas = renamed.get("components", {}).get("schemas", {})
    added = {f"{name}.{key}": schema for key, schema in schemas.items()}
    components = document["components"]
    document["components"] = {
        **components,
        "schemas": {**components["schemas"], **added},
    }


def _model_operation(template: Mapping[str, Any], loaded: LoadedModel) -> Any:
    spec = loaded.spec
    operation = copy.deepcopy(dict(template))
    operation["tags"] = ["loaded models"]
    operation["summary"] = f"{_signature(spec)}"
    operation["operationId"] = "infer_" + re.sub(r"\W", "_", spec.name)
    operation["parameters"] = [p for p in operation["parameters"] if "$ref" in p]
    operation["description"] = _description(spec, loaded)
    content = operation["requestBody"]["content"]
    content["application/json"] = {
        "schema": _request_schema(spec),
        "examples": _examples(spec, loaded),
    }
    answers = operation["responses"]["200"]["content"]
    answers["application/json"]["example"] = _example_response(spec)
    # The page shows the first media type. A file comes first if text would be too long
    # for a browser.
    if len(spec.inputs) == 1 and is_large(spec, spec.inputs) and not loaded.example:
        operation["requestBody"]["content"] = _npy_first(content)
    if len(spec.outputs) == 1 and is_large(spec, spec.outputs):
        operation["responses"]["200"]["content"] = _npy_first(answers)
    return operation


def _npy_first(content: dict[str, Any]) -> dict[str, Any]:
    return {NPY: content[NPY], **content}


def _signature(spec: ModelSpec) -> str:
    def tensors(items: Iterable[TensorSpec]) -> str:
        return ", ".join(f"{t.name}: {_type(spec, t)}" for t in items)

    return f"{tensors(spec.inputs)} → {tensors(spec.outputs)}"


def _type(spec: ModelSpec, tensor: TensorSpec) -> str:
    if tensor.shape is None:
        return notation(tensor.datatype, None)
    return notation(tensor.datatype, shown_shape(spec, tensor))


def _description(spec: ModelSpec, loaded: LoadedModel) -> str:
    lines = [f"Version {spec.version} of {spec.name}.", ""]
    for title, tensors in (("inputs:", spec.inputs), ("outputs:", spec.outputs)):
        names = (f"`{t.name}` {_type(spec, t)}" for t in tensors)
        lines.append(f"- {title} {', '.join(names)}")
    if spec.is_batched:
        lines.append(
            "- the device runs rows of different requests together, up to "
            f"{spec.max_batch_size}"
        )
    if example_request(spec, loaded.example, loaded.fill) is None:
        first = spec.inputs[0].name
        lines.append(
            f"- its inputs have more than {MAX_EXAMPLE_ELEMENTS} elements: send them "
            "in a binary encoding, as a `.npy` file here, or with `popgate infer "
            f"{spec.name} --input {first}=file.npy`"
        )
    elif not (loaded.warmed or loaded.example):
        lines.append(
            "- the example values were not tried on the model; set others in "
            "`[example]` of its config.toml"
        )
    url = f"v1/models/{quote(spec.name)}/client.py"
    lines.append(f"- [client.py]({url}): a Python program that calls it")
    return "\n".join(lines)


def _examples(spec: ModelSpec, loaded: LoadedModel) -> dict[str, Any]:
    more = example_parameters(loaded)
    short = example_request(spec, loaded.example, loaded.fill, more)
    if short is None:
        short = {"inputs": {t.name: f"… {_type(spec, t)} …" for t in spec.inputs}}
        return {"short": {"summary": "too long to be shown", "value": short}}
    found = {"short": {"summary": "name and values", "value": short}}
    whole = None if loaded.example else example_oip_request(spec, loaded.fill, more)
    if whole is not None:
        found["protocol"] = {"summary": "Open Inference Protocol", "value": whole}
    return found


def _example_response(spec: ModelSpec) -> dict[str, Any]:
    outputs = [
        {"name": t.name, "datatype": t.datatype, "shape": shown_shape(spec, t)}
        | {"data": ["…"]}
        for t in spec.outputs
    ]
    return {"model_name": spec.name, "model_version": spec.version, "outputs": outputs}


def _request_schema(spec: ModelSpec) -> dict[str, Any]:
    short = {
        "type": "object",
        "title": "short form",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "inputs": {
                "type": "object",
                "required": [
                    t.name for t in spec.inputs if t.name not in spec.defaults
                ],
                "properties": {t.name: _tensor_schema(spec, t) for t in spec.inputs},
            },
        },
    }
    return {"anyOf": [short, {"$ref": REFERENCE.format(model="InferenceRequest")}]}


def _tensor_schema(spec: ModelSpec, tensor: TensorSpec) -> dict[str, Any]:
    kind = tensor.type.kind
    schema: dict[str, Any] = {"type": _JSON_TYPES.get(kind, "string")}
    if tensor.shape is None:
        return {"description": f"{tensor.datatype} of any shape"}
    for dim in reversed(shown_shape(spec, tensor)):
        schema = {"type": "array", "items": schema}
        if 0 <= dim <= MAX_EXAMPLE_ELEMENTS and not is_large(spec, [tensor]):
            schema |= {"minItems": dim, "maxItems": dim}
    schema["description"] = f"{_type(spec, tensor)}"
    return schema
