"""The server does what its own OpenAPI document says: schemathesis tries it.

All of its checks are on, for a few requests to every operation. `make fuzz` goes on for
longer (`bench/fuzz.py`).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from popgate_pages.openapi import openapi_document
from tests.app.served import ROOT, ServedGateway, share_memory, trace_to
from tests.engine import models

OPERATIONS = [
    (path, method)
    for path, operations in openapi_document()["paths"].items()
    for method in operations
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    folder = tmp_path_factory.mktemp("conformance")
    root = folder / "models"
    root.mkdir()
    models.affine(root / "affine.popef")
    options = (*trace_to(folder / "trace.json"), *share_memory())
    with ServedGateway(root, *options) as served:
        yield served.wait_ready()
        assert served.process.poll() is None, served.output


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as made:
        made.trust_env = False
        yield made


@pytest.fixture(scope="module")
def document(gateway: ServedGateway) -> Any:
    # Each process of a run collects this file, and one of them runs it.
    import schemathesis

    # It registers the hooks that `bench.fuzz` uses too.
    importlib.import_module("bench.schemathesis_hooks")
    config = schemathesis.Config.from_path(ROOT / "bench" / "schemathesis.toml")
    return schemathesis.openapi.from_url(f"{gateway.url}/openapi.json", config=config)


def cases(operation: Any) -> Any:
    """Requests that the schema allows, and such that it does not."""
    from schemathesis import GenerationMode

    return st.one_of(
        [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]
    )


@pytest.mark.parametrize(
    ("path", "method"), [*OPERATIONS, ("/v1/models/affine/infer", "post")]
)
def test_operation(
    document: Any, session: requests.Session, path: str, method: str
) -> None:
    @given(case=cases(document[path][method]), is_there=st.booleans())
    @settings(
        max_examples=5,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    def run(case: Any, is_there: bool) -> None:
        if "{name}" in path and is_there and not path.endswith("/unload"):
            case.path_parameters["name"] = "affine"
        case.call_and_validate(session=session)

    run()
