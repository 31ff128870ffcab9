"""The page of a text model, as a browser sees it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.app.api import browser
from tests.app.api.browser import Browser
from tests.app.served import ServedGateway

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

from plugins.text.tests.folders import classifier_folder, embedding_folder

pytestmark = pytest.mark.skipif(
    browser.COMMAND is None, reason="there is no Chromium here"
)
LINES = ["the cat sits on the mat", "a fast model", "the cat sits on the mat"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("models")
    embedding_folder(root / "unit")
    classifier_folder(root / "classes", ["good", "bad: very", "ugly"])
    classifier_folder(root / "rank", ["score"])
    cache = str(tmp_path_factory.mktemp("cache"))
    with ServedGateway(root, "--devices", "cpu:1", "--cache-dir", cache) as gateway:
        yield gateway.wait_ready()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as page:
        page.resize(1280, 900)
        yield page


def run(chromium: Browser, served: ServedGateway, model: str) -> None:
    """Type the lines into the page of a model, and run them."""
    chromium.open(f"{served.url}/#/models/{model}")
    chromium.wait(f"document.querySelector('h1')?.textContent === '{model}'")
    chromium.wait("document.querySelector('textarea')?.value.includes('cat')")
    lines = "\\n".join(LINES)
    chromium.evaluate(f"document.querySelector('textarea').value = '{lines}'")
    chromium.click(".run")


def cells(chromium: Browser, selector: str) -> list[str]:
    found: list[str] = chromium.evaluate(
        f"[...document.querySelectorAll('.answer {selector}')].map(e => e.textContent)"
    )
    return found


def test_vectors_are_compared(served: ServedGateway, chromium: Browser) -> None:
    run(chromium, served, "unit")
    chromium.wait_text("Cosine similarities", ".answer")
    values = [float(cell) for cell in cells(chromium, "td")[:9]]
    assert [values[n] for n in (0, 2, 4, 6, 8)] == [1.0] * 5
    assert values[1] == values[3] < 1
    answer = served.client.post(
        "/v1/models/unit/similarity",
        json={"inputs": {"source_sentence": LINES[0], "sentences": [LINES[1]]}},
    )
    assert values[1] == pytest.approx(answer.json()[0], abs=1e-3)
    assert not chromium.errors


def test_figures_of_tokens_are_those_of_the_metrics(
    served: ServedGateway, chromium: Browser
) -> None:
    run(chromium, served, "unit")
    chromium.wait("document.querySelector('.tokens dd') !== null")
    found: dict[str, str] = chromium.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.tokens .facts > div')]"
        ".map(e => [...e.children].map(c => c.textContent)))"
    )
    assert [*found] == ["Tokens", "Padding", "Tokens per batch", "Tokenizing a request"]
    stats = served.client.get("/v1/models/unit/stats").json()["model_stats"][0]
    tokens = stats["token_stats"]
    assert 0 < int(found["Tokens"]) <= tokens["tokens"] <= tokens["padded_tokens"]
    assert found["Padding"].endswith(" %")
    assert stats["execution_count"] == tokens["batches"]
    assert not chromium.errors


def test_classes_have_bars(served: ServedGateway, chromium: Browser) -> None:
    run(chromium, served, "classes")
    chromium.wait("document.querySelectorAll('.answer .bars').length === 3")
    answer = served.client.post("/v1/models/classes/predict", json={"inputs": LINES[0]})
    names = cells(chromium, ".bars:first-of-type span:first-child")[:3]
    assert names == [one["label"] for one in answer.json()]
    assert "bad: very" in names
    assert not chromium.errors


def test_documents_are_ranked(served: ServedGateway, chromium: Browser) -> None:
    run(chromium, served, "rank")
    chromium.wait_text("Best answer first", ".answer")
    query = chromium.evaluate(
        "document.querySelector('[aria-label=\"The query\"]').value"
    )
    answer = served.client.post(
        "/v1/models/rank/rerank", json={"query": query, "texts": LINES}
    )
    expected = [LINES[one["index"]] for one in answer.json()]
    assert cells(chromium, ".bars span:first-child") == expected
    scores = [float(cell) for cell in cells(chromium, ".bars .n")]
    assert scores == pytest.approx([one["score"] for one in answer.json()], abs=1e-4)
    assert not chromium.errors
