"""Newcomers follow a page from an empty folder to an answer, and go on from there.

| Newcomer | Page | Test |
| --- | --- | --- |
| a scikit-learn table with gaps and strings | how-to/bring-a-model.md | `test_blocks.py`; other ways in: plugins/tools/tests/test_pack_sklearn.py |
| a JPEG to an ONNX and to a Python model | how-to/send-files.md | `test_a_picture_…` below |
| a Triton repository | how-to/migrate-from-triton.md | `test_blocks.py` |
| a model.py with a route of its own | reference/python-models.md | `test_blocks.py` |
| the same, added while the server runs | tutorials/python-model.md | `test_a_route_…` below |
| the pages on a phone | tutorials/first-model.md | `test_a_digit_…` below; axe-core: plugins/pages/tests/test_axe.py |

Covers nothing of its own: what the pages tell has tests beside it.
"""  # noqa: E501 - rows of a table

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from popgate import AsyncClient, Client
from tests.app.api import browser
from tests.app.api.browser import Browser
from tests.app.served import ServedGateway
from tests.docs.reader import Reader, Servers, read_blocks
from tests.support import WAIT, until

in_chromium = pytest.mark.skipif(
    browser.COMMAND is None, reason="there is no Chromium here"
)


def follow(page: str, reader: Reader, last: str = "") -> None:
    """Follow a page to the end of its section `last`, or to its own end."""
    blocks = read_blocks(page)
    if last:
        end = max(i for i, block in enumerate(blocks) if block.section == last)
        blocks = blocks[: end + 1]
    for block in blocks:
        try:
            reader.follow(block)
        except Exception as e:
            e.add_note(f"in {block}:\n{block.text}")
            raise


# -- a picture


def size_of(outputs: Mapping[str, Any]) -> list[int]:
    found: list[int] = np.ravel(outputs["size"]).tolist()
    return found


def colour_of(outputs: Mapping[str, Any]) -> str:
    """Return the colour of the highest value; JSON names it, clients get the values."""
    values = np.ravel(outputs["probabilities"])
    if values.dtype.kind == "U":
        return str(values[0]).rpartition(":")[2]
    return ["red", "green", "blue"][values.argmax()]


@dataclass(frozen=True)
class Pictured:
    """A served model, a picture for it, and what its answer is."""

    model: str
    file: Path
    served: ServedGateway
    read: Callable[[Mapping[str, Any]], object]
    answer: object

    @property
    def url(self) -> str:
        return f"{self.served.url}/v1/models/{self.model}/infer"

    def check(self, document: Any) -> None:
        """Check an answer in JSON."""
        assert "outputs" in document, document
        outputs = {each["name"]: each["data"] for each in document["outputs"]}
        assert self.read(outputs) == self.answer


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Pictured]]:
    """What there is at the end of the page: a model in Python, and one of ONNX."""
    folder = tmp_path_factory.mktemp("pictures")
    page = "docs/how-to/send-files.md"
    with Servers() as servers, Reader(folder, servers) as reader:
        follow(page, reader, "A form has a part for each input")
        look = reader.served
        rest = [b for b in read_blocks(page) if b.section.startswith("A model of")]
        for block in rest:
            reader.follow(block)
        colour = reader.served
        assert look is not None
        assert colour is not None
        assert look is not colour
        yield [
            Pictured("look", folder / "cat.jpg", look, size_of, [64, 48]),
            Pictured("colour", folder / "green.jpg", colour, colour_of, "green"),
        ]


@pytest.fixture(params=[0, 1], ids=["python", "onnx"])
def picture(pictures: list[Pictured], request: pytest.FixtureRequest) -> Pictured:
    found: Pictured = pictures[request.param]
    return found


@pytest.mark.parametrize("option", ["--data-binary", "-F"])
def test_a_picture_is_sent_by_curl(picture: Pictured, option: str) -> None:
    value = f"image=@{picture.file}" if option == "-F" else f"@{picture.file}"
    command = ["curl", "-s", "-m", str(WAIT), picture.url, option, value]
    done = subprocess.run(command, capture_output=True, check=True)
    picture.check(json.loads(done.stdout))


def test_a_picture_is_sent_by_clients(picture: Pictured) -> None:
    jpeg = picture.file.read_bytes()

    async def ask() -> Mapping[str, Any]:
        async with AsyncClient(picture.served.url) as client:
            return await client.infer(picture.model, jpeg)

    with Client(picture.served.url) as client:
        assert picture.read(client.infer(picture.model, jpeg)) == picture.answer
    assert picture.read(asyncio.run(ask())) == picture.answer


#: Puts a file as a person chooses it into `window.file`.
CHOOSE = """(() => {
  const letters = atob("%s");
  const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
  window.file = new File([bytes], "cat.jpg", { type: "image/jpeg" });
})()"""
#: Posts it as it is, and in a form.
POST = """(async () => {
  const form = new FormData();
  form.append("image", window.file);
  const answers = [];
  for (const body of [window.file, form]) {
    const response = await fetch("%s", { method: "POST", body });
    answers.push(await response.json());
  }
  return answers;
})()"""


@in_chromium
def test_a_picture_is_sent_by_a_browser(
    pictures: list[Pictured], tmp_path: Path
) -> None:
    with Browser(tmp_path) as page:
        for each in pictures:
            page.open(f"{each.served.url}/")
            page.wait_text(each.model, "main")
            page.evaluate(CHOOSE % base64.b64encode(each.file.read_bytes()).decode())
            for answer in page.evaluate(POST % each.url):
                each.check(answer)
        assert not page.errors


# -- a model with a route of its own

ROUTE = """
    @route.post("/v1/moods")
    def mood(self, body: Review):
        return {"good": [w for w in body.text.split() if w in self.good]}
"""
REVIEW = """from pydantic import BaseModel

from popgate import Model, route


class Review(BaseModel):
    text: str
"""


def test_a_route_is_added_while_the_server_runs(tmp_path: Path) -> None:
    with Servers() as servers, Reader(tmp_path, servers) as reader:
        follow("docs/tutorials/python-model.md", reader)
        assert reader.served is not None
        client = reader.served.client
        body = {"text": "lovely and great"}
        assert client.post("/v1/moods", json=body).status_code == 404

        file = tmp_path / "models/mood/1/model.py"
        before = file.read_text()
        assert "from popgate import Model\n" in before
        file.write_text(before.replace("from popgate import Model\n", REVIEW) + ROUTE)
        found: list[httpx.Response] = []

        def has_come() -> bool:
            found[:] = [client.post("/v1/moods", json=body)]
            return found[0].status_code != 404

        until(has_come, "the route does not come")
        assert found[0].json() == {"good": ["lovely", "great"]}
        wrong = client.post("/v1/moods", json={"txt": "great"})
        assert wrong.status_code == 422
        assert "body" in wrong.text
        assert reader.served.infer("mood", text=["lovely"]) == {"score": [1.0]}


# -- a phone

#: What a finger can hardly hit (24 px is the least of WCAG 2.2), and what is wider than
#: the screen. Links within a sentence may be as high as its line.
TOO_SMALL = """(() => {
  const wrong = [];
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) wrong.push(`the page is ${wide} px wide`);
  const targets = "a, button, input:not([type=file]), select, summary, [role=tab]";
  for (const each of document.querySelectorAll(targets)) {
    const { width, height } = each.getBoundingClientRect();
    if (width && height && (width < 24 || height < 24) && !each.closest("p"))
      wrong.push(`${each.tagName} ${each.textContent}: ${width} x ${height}`);
  }
  return wrong;
})()"""


def touch(page: Browser, places: list[tuple[float, float]]) -> None:
    """Move one finger from the first of the places to the last."""
    for number, (x, y) in enumerate(places):
        kind = "touchMove" if number else "touchStart"
        point = {"x": x, "y": y}
        page.call("Input.dispatchTouchEvent", type=kind, touchPoints=[point])
    page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])


@in_chromium
def test_a_digit_is_drawn_on_a_phone(tmp_path: Path) -> None:
    wrong: dict[str, list[str]] = {}

    def look(page: Browser, name: str) -> None:
        if found := page.evaluate(TOO_SMALL):
            wrong[name] = found

    with (
        Servers() as servers,
        Reader(tmp_path, servers) as reader,
        Browser(tmp_path / "profile") as page,
    ):
        follow("docs/tutorials/first-model.md", reader, "Start the server")
        page.resize(390, 844)
        page.call("Emulation.setTouchEmulationEnabled", enabled=True)
        page.open(reader.address("http://127.0.0.1:8000/"))
        page.wait_text("digits", "main")
        look(page, "overview")
        page.click("main a[href='#/models/digits']")
        x, y = page.place(".sheet")
        look(page, "model")
        touch(page, [(x, y + step) for step in range(-100, 101, 10)])
        page.wait_text("1", ".answer .big")
        page.wait_text("Explain this request", ".answer")
        look(page, "answer")
        page.click(".answer a")
        page.wait_text("Answered at", "main")
        look(page, "request")
        assert not wrong
        assert not page.errors
