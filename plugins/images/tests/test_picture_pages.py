"""The page of a model of pictures, in a browser: its snippets, and a file dropped.

Covers: plugins/pages/src/popgate_pages/static/snippets.js.
"""

from __future__ import annotations

import base64
import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from PIL import Image

from tests.app.api import browser
from tests.app.api.browser import Browser
from tests.app.served import ServedGateway

GRAPH = """
<ir_version: 10, opset_import: ["": 20]>
colour (float[n,3,32,32] image) => (float[n,3] probabilities) {
  pooled = GlobalAveragePool(image)
  flat = Flatten(pooled)
  probabilities = Softmax<axis=-1>(flat)
}"""
CONFIG = """
labels = { probabilities = ["red", "green", "blue"] }
[image]
"""
#: A file as browsers hand it over, and the drop of it on the page.
DROP = """(async () => {
  const text = atob("%s");
  const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  window.picture = new File([bytes], "green.jpg", { type: "image/jpeg" });
  const data = new DataTransfer();
  data.items.add(window.picture);
  const zone = document.querySelector(".drop");
  const dropped = { dataTransfer: data, bubbles: true, cancelable: true };
  zone.dispatchEvent(new DragEvent("drop", dropped));
})()"""

pytestmark = pytest.mark.skipif(
    browser.COMMAND is None, reason="there is no Chromium here"
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("models")
    (root / "colour" / "1").mkdir(parents=True)
    onnx.save(onnx.parser.parse_model(GRAPH), root / "colour" / "1" / "model.onnx")
    (root / "colour" / "config.toml").write_text(CONFIG)
    with ServedGateway(root) as gateway:
        yield gateway.wait_ready()


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as page:
        page.resize(1280, 900)
        yield page


def green() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (300, 200), "#00ff00").save(file, "JPEG")
    return file.getvalue()


def test_a_picture_is_dropped_and_sent_as_it_is(
    served: ServedGateway, chromium: Browser
) -> None:
    chromium.open(f"{served.url}/#/models/colour")
    chromium.wait("document.querySelector('.drop') !== null")
    chromium.evaluate(DROP % base64.b64encode(green()).decode())
    chromium.wait_text("green", "main")
    sent = "document.querySelector('img.seen').naturalWidth"
    chromium.wait(f"{sent} === 300")
    assert not chromium.errors


def test_snippets_send_a_picture(
    served: ServedGateway, chromium: Browser, tmp_path: Path
) -> None:
    (tmp_path / "picture.jpg").write_bytes(green())
    chromium.open(f"{served.url}/#/models/colour")
    chromium.wait_text("Call it from a program", "main")
    texts = {}
    for name in ("curl", "Python", "JavaScript"):
        chromium.evaluate(
            "[...document.querySelectorAll('[role=tab]')]"
            f".find(b => b.textContent === '{name}').click()"
        )
        texts[name] = chromium.evaluate("document.querySelector('.code pre').innerText")
    for command in (
        ["bash", "-c", texts["curl"]],
        [sys.executable, "-c", texts["Python"]],
    ):
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert ":green" in done.stdout, done.stdout + done.stderr
    chosen = 'document.querySelector("input[type=file]").files[0]'
    assert chosen in texts["JavaScript"]
    chromium.evaluate(DROP % base64.b64encode(green()).decode())
    script = texts["JavaScript"].replace(chosen, "window.picture")
    outputs = chromium.evaluate(f"(async () => {{ {script}; return outputs; }})()")
    assert outputs[0]["data"][0].endswith(":green")
