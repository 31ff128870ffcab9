"""Every page of ours without a finding of axe-core, on a desktop and on a phone.

Swagger UI's page (/docs) is not ours.

Covers: plugins/pages/src/popgate_pages/static/log.js.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from tests.app.api import browser
from tests.app.api.browser import Browser
from tests.app.served import ROOT, ServedGateway

pytest.importorskip("axe_core_python", reason="axe-core is not installed")
pytestmark = pytest.mark.skipif(
    browser.COMMAND is None, reason="there is no Chromium here"
)

#: Addresses, and what is there once the page is complete.
PAGES = {
    "#/": ".figures dt",
    "#/requests": "#main table",
    "#/requests/good": ".strip, .story",
    "#/requests/bad": ".strip, .story",
    "#/models/digits": ".tabs",
    "#/models/words": ".tabs",
    "#/models/missing": ".empty",
    "#/log": "pre.log",
    "#/bogus": "h1",
    "nothing/here": "h1",
}
FINDINGS = """axe.run().then((found) => found.violations.map(
  (one) => [one.id, one.help, ...one.nodes.slice(0, 3).map((node) => node.html)]))"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("models")
    shutil.copy(ROOT / "examples" / "digits" / "digits.onnx", root)
    shutil.copytree(ROOT / "examples" / "python" / "words", root / "words")
    (root / "broken.popef").write_bytes(b"no container")
    with ServedGateway(root, "--allow-python") as gateway:
        gateway.wait_ready()
        for name, text in (("good", ["one two"]), ("bad", 1)):
            gateway.client.post(
                "/v1/models/words/infer",
                json={"inputs": {"text": text}},
                headers={"x-request-id": name, "accept": "text/event-stream"},
            )
        yield gateway


# A finding depends on the width or on the colours, not on both.
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_pages_have_no_finding(
    served: ServedGateway, tmp_path: Path, width: int, scheme: str
) -> None:
    script = (resources.files("axe_core_python") / "axe.min.js").read_text()
    found = {}
    with Browser(tmp_path) as page:
        page.resize(width, 900)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.call("Emulation.setEmulatedMedia", features=features)
        for place, sign in PAGES.items():
            page.open("about:blank")
            page.open(f"{served.url}/{place}")
            # Colours are judged, and a style sheet may come after what it is for.
            page.wait("document.readyState === 'complete'")
            page.wait(f"document.querySelector({sign!r}) !== null")
            page.evaluate(f"{script}; true")
            findings = page.evaluate(FINDINGS)
            if findings:
                found[place] = findings
    assert not found
