"""Swagger UI from the server itself, and the document that it shows.

Covers: plugins/pages/src/popgate_pages/docs_page.py,
plugins/pages/src/popgate_pages/document_routes.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.served import ServedGateway, add
from tests.app.serving.test_keys_apart import entry


def test_documentation_is_served_from_here(gateway: ServedGateway) -> None:
    page = gateway.client.get("/", follow_redirects=True)
    assert page.url.path == "/docs"
    assert "http" not in page.text.split("<body>")[1]
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for file, kind in (
        ("swagger-ui-bundle.js", "text/javascript"),
        ("swagger-ui.css", "text/css"),
        ("favicon.png", "image/png"),
        ("start.js", "text/javascript"),
    ):
        response = gateway.client.get(f"/docs/{file}")
        assert response.status_code == 200
        assert response.headers["content-type"].startswith(kind)
        assert len(response.content) > 100


def test_documentation_has_the_loaded_models(gateway: ServedGateway) -> None:
    document = gateway.client.get("/openapi.json").json()
    assert document["servers"] == [{"url": "./"}]  # below whatever prefix it was found
    paths = document["paths"]
    assert "/v1/models/broken/infer" not in paths
    assert paths["/v1/models/{name}/infer"]
    operation = paths["/v1/models/weighted/infer"]["post"]
    assert operation["summary"] == "A: FP32[2,3], B: FP32[2,3] → output: FP32[2,3]"
    body = operation["requestBody"]["content"]["application/json"]
    schema = body["schema"]["anyOf"][0]["properties"]["inputs"]["properties"]["A"]
    assert schema["minItems"] == schema["maxItems"] == 2
    assert schema["items"]["items"] == {"type": "number"}
    for example in body["examples"].values():
        response = gateway.client.post(
            "/v1/models/weighted/infer", json=example["value"]
        )
        assert response.status_code == 200, response.text
    # The page asks for the first: a person wants to read it.
    assert next(iter(operation["responses"]["200"]["content"])) == "application/json"


def test_documentation_has_the_models_that_a_key_sees(tmp_path: Path) -> None:
    for name in ("one", "two"):
        add(tmp_path, name)
    keys = tmp_path / "keys.toml"
    entries = [
        entry("all", '["*"]', "pages", "metadata"),
        entry("one", '["one"]', "pages", "metadata"),
        entry("pages", '["*"]', "pages"),
    ]
    keys.write_text('anonymous = ["pages"]\n' + "".join(entries))
    keys.chmod(0o600)
    with ServedGateway(tmp_path, "--keys", str(keys)) as served:
        client = served.wait_ready().client

        def seen(key: str) -> set[str]:
            headers = {"x-api-key": key} if key else {}
            paths = client.get("/openapi.json", headers=headers).json()["paths"]
            return {
                name for name in ("one", "two") if f"/v1/models/{name}/infer" in paths
            }

        for _ in range(2):
            assert seen("all") == {"one", "two"}
            assert seen("one") == {"one"}
            assert seen("pages") == seen("") == set()
    keys.write_text('anonymous = ["pages", "metadata"]\n' + entries[0])
    with ServedGateway(tmp_path, "--keys", str(keys)) as served:
        client = served.wait_ready().client
        assert seen("") == {"one", "two"}


@pytest.mark.parametrize("path", ["/docs/", "/redoc"])
def test_other_addresses_lead_to_it(gateway: ServedGateway, path: str) -> None:
    answer = gateway.client.get(path, follow_redirects=True)
    assert (answer.status_code, answer.url.path) == (200, "/docs")


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json"])
def test_options_says_which_methods_there_are(
    gateway: ServedGateway, path: str
) -> None:
    allowed = "GET, HEAD, OPTIONS"
    answer = gateway.client.options(path)
    assert (answer.status_code, answer.headers["allow"]) == (204, allowed)
    refused = gateway.client.delete(path)
    assert (refused.status_code, refused.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/some/base/docs", 200), ("/some/base", 307), ("/some/base?x", 307)],
)
def test_below_a_base_path(extended: ServedGateway, path: str, status: int) -> None:
    assert extended.client.get(path).status_code == status


def test_the_start_shows_the_addresses(gateway: ServedGateway) -> None:
    assert gateway.wait_line("  docs  ") == f"  docs     {gateway.url}/docs"
    assert gateway.wait_line("  pages  ") == f"  pages    {gateway.url}/"
