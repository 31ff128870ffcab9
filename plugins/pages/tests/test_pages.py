"""The pages for people, as their clients and their browsers see them.

Covers: plugins/pages/src/popgate_pages/requests.py,
plugins/pages/src/popgate_pages/schemas.py.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import onnx
import pytest
from onnx import TensorProto, helper

from tests.app.api import browser
from tests.app.api.browser import Browser
from tests.app.served import ROOT, ServedGateway, add
from tests.engine import models
from tests.support import until

HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
STATIC = ROOT / "plugins" / "pages" / "src" / "popgate_pages" / "static"
DIGITS = ROOT / "examples" / "digits" / "digits.onnx"
PAIRS = "max_batch_size = 2\nmax_queue_delay = 60\npreferred_batch_sizes = [2]\n"
ROW = {"inputs": {"input": [[1.0, 2.0, 3.0, 4.0]]}}

in_chromium = pytest.mark.skipif(
    browser.COMMAND is None, reason="there is no Chromium here"
)


def photo(path: Path) -> None:
    """The mean colour of a picture, as models of pictures take one."""
    image = helper.make_tensor_value_info(
        "image", TensorProto.FLOAT, ["n", 3, 224, 224]
    )
    colour = helper.make_tensor_value_info("colour", TensorProto.FLOAT, ["n", 3])
    nodes = [
        helper.make_node("GlobalAveragePool", ["image"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["colour"]),
    ]
    graph = helper.make_graph(nodes, "photo", [image], [colour])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("models")
    shutil.copy(DIGITS, root / "digits.onnx")
    photo(root / "photo.onnx")
    models.affine(root / "affine.popef")
    add(root, "pairs", config=PAIRS)
    (root / "broken.popef").write_bytes(b"no container")
    with ServedGateway(root) as served:
        yield served.wait_ready()


@pytest.fixture(scope="module")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture
def chromium(one_browser: Browser) -> Browser:
    one_browser.renew()
    one_browser.resize(1280, 900)
    return one_browser


# -- over HTTP


def test_browsers_get_the_page_and_programs_what_they_got(
    served: ServedGateway,
) -> None:
    page = served.client.get("/", headers=HTML)
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    program = served.client.get("/")
    assert (program.status_code, program.headers["location"]) == (307, "docs")


def test_every_file_is_guarded(served: ServedGateway) -> None:
    for file in [p.name for p in STATIC.iterdir()]:
        answer = served.client.get(f"/pages/{file}")
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; ")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = {"if-none-match": answer.headers["etag"]}
        assert served.client.get(f"/pages/{file}", headers=again).status_code == 304
    for file in ("none.js", "..%2Fstyle.css", "%2e%2e/pages.py"):
        assert served.client.get(f"/pages/{file}").status_code == 404


def test_browsers_get_a_page_where_there_is_nothing(served: ServedGateway) -> None:
    for path in ("/nix", "/nix/and/nothing", "/v1/nix?a=<b>"):
        page = served.client.get(path, headers={**HTML, "x-request-id": "nix"})
        assert page.status_code == 404
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["content-security-policy"].startswith("default-src 'self'")
        assert "Page not found" in page.text
        links = set(re.findall(r'href="([^"]+)"', page.text))
        assert {urlsplit(urljoin(path, link)).path for link in links} == {
            "/", "/docs", "/pages/icon.svg", "/pages/style.css",
        }  # fmt: skip
        program = served.client.get(path, headers={"accept": "*/*"})
        assert (program.status_code, program.json()["code"]) == (404, "not_found")
    assert explained(served, "nix")["code"] == "not_found"
    # A route that knows its own 404 keeps it.
    unknown = served.client.get("/v1/models/none", headers=HTML)
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_model")
    method = served.client.put("/v1/models", headers=HTML)
    assert (method.status_code, method.json()["code"]) == (405, "method_not_allowed")


def test_no_file_names_another_host() -> None:
    for path in STATIC.iterdir():
        found = re.findall(r"https?://([^/\s\"'`)]+)", path.read_text())
        # Of a licence, and the name of SVG itself.
        assert set(found) <= {"github.com", "www.w3.org"}, path


def test_without_pages(tmp_path: Path) -> None:
    models.affine(tmp_path / "affine.popef")
    with ServedGateway(tmp_path, "--no-pages") as served:
        served.wait_ready()
        assert served.client.get("/", headers=HTML).headers["location"] == "docs"
        for path in ("/pages/app.js", "/v1/requests", "/v1/requests/x"):
            assert served.client.get(path).status_code == 404
        assert served.client.get("/nix", headers=HTML).json()["code"] == "not_found"


def ask(served: ServedGateway, model: str, request_id: str, body: Any = None) -> int:
    headers = {"x-request-id": request_id}
    path = f"/v1/models/{model}/infer"
    return served.client.post(path, json=body or ROW, headers=headers).status_code


def explained(served: ServedGateway, request_id: str) -> Any:
    answer = served.client.get(f"/v1/requests/{request_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_request_is_explained(served: ServedGateway) -> None:
    assert ask(served, "affine", "explained/1") == 200
    one = explained(served, "explained/1")
    assert (one["model"], one["status"], one["rows"]) == ("affine", 200, 1)
    assert one["device"].startswith("cpu:")
    assert one["phases"]["compute"] > 0
    assert sum(one["phases"].values()) == pytest.approx(one["total_ms"], abs=0.01)
    listed = served.client.get("/v1/requests?model=affine&limit=1").json()
    assert [r["id"] for r in listed["answered"]] == ["explained/1"]
    assert "explained/1" in [
        r["id"] for r in served.client.get("/v1/requests?limit=200").json()["slow"]
    ]


def test_a_failed_request_is_explained(served: ServedGateway) -> None:
    assert ask(served, "affine", "failed-1", {"inputs": {"input": [[1]]}}) == 400
    one = explained(served, "failed-1")
    assert (one["status"], one["code"]) == (400, "invalid_input")
    assert "expected" in one["error"].lower()
    failed = served.client.get("/v1/requests?model=affine").json()["failed"]
    assert failed[0]["id"] == "failed-1"
    for number in ("1_0", " 10", "\u0661"):
        answer = served.client.get("/v1/requests", params={"limit": number})
        assert answer.status_code == 400
        assert "whole number" in answer.json()["error"]
    unknown = served.client.get("/v1/requests/none-of-them")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_request")


def test_requests_of_one_batch_know_each_other(served: ServedGateway) -> None:
    names = ["mate-1", "mate-2"]
    with ThreadPoolExecutor() as pool:
        statuses = pool.map(lambda name: ask(served, "pairs", name), names)
        assert list(statuses) == [200, 200]
    for name, other in (names, names[::-1]):
        one = explained(served, name)
        assert (one["rows"], one["batch_rows"]) == (1, 2)
        assert one["mates"] == [other]


# -- in a browser


def check_quiet(page: Browser, served: ServedGateway) -> None:
    """No error, and no request to anybody else."""
    assert not page.errors
    hosts = {urlsplit(url).netloc for url in page.requests}
    assert hosts - {""} == {urlsplit(served.url).netloc}


@in_chromium
def test_the_overview_shows_what_there_is(
    served: ServedGateway, chromium: Browser
) -> None:
    chromium.open(served.url)
    for text in ("affine", "photo", "digits", "Unavailable", "not a PopGate container"):
        chromium.wait_text(text, "main")
    chromium.wait_text("cpu:", "main")
    chromium.wait_text("ready", "#state")
    for width in (360, 390, 768):
        chromium.resize(width, 800)
        for place in ("#/", "#/requests", "#/models/digits", "#/models/photo"):
            chromium.evaluate(f"location.hash = {place!r}")
            chromium.wait("document.querySelector('main h1, main .tabs') !== null")
            wide = chromium.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, place
    check_quiet(chromium, served)


# What axe-core has found on the overview; each entry of the list is one finding.
FINDINGS = """(() => {
  const wrong = [];
  for (const each of document.querySelectorAll("dl > *, dl > div > *"))
    if (!each.matches("div, dt, dd")) wrong.push(`${each.tagName} in a dl`);
  let level = 0;
  for (const each of document.querySelectorAll("h1, h2, h3")) {
    const own = Number(each.tagName[1]);
    if (own > level + 1) wrong.push(`${each.tagName} below h${level}`);
    level = own;
  }
  for (const each of document.querySelectorAll("main a, header a")) {
    const { width, height } = each.getBoundingClientRect();
    if (width < 24 || height < 24)
      wrong.push(`${each.textContent}: ${width} x ${height}`);
  }
  for (const each of document.querySelectorAll(".scroll"))
    if (each.scrollWidth > each.clientWidth && each.tabIndex !== 0)
      wrong.push("a table that keys cannot scroll");
  return wrong;
})()"""


@in_chromium
def test_pages_suit_a_finger_and_a_screen_reader(
    served: ServedGateway, chromium: Browser
) -> None:
    assert ask(served, "affine", "on-a-phone") == 200
    chromium.resize(390, 800)
    chromium.open(served.url)
    for place in ("#/", "#/requests", "#/models/digits", "#/requests/on-a-phone"):
        chromium.evaluate(f"location.hash = {place!r}")
        chromium.wait("document.querySelector('.strip, .story, .tabs') !== null")
        found: list[str] = []

        def is_clean(found: list[str] = found) -> bool:
            found[:] = chromium.evaluate(FINDINGS)
            return not found

        until(is_clean, found)  # a table that has just come is not yet measured
    # The shadow that shows that a table goes on.
    chromium.evaluate("location.hash = '#/'")
    chromium.wait("document.querySelector('.scroll') !== null")
    style = "getComputedStyle(document.querySelector('.scroll')).backgroundImage"
    assert "gradient" in chromium.evaluate(style)
    check_quiet(chromium, served)


@pytest.fixture
def asked(served: ServedGateway) -> Iterator[None]:
    """Requests that come one after another, so that all tables change."""
    over = threading.Event()

    def load() -> None:
        # Some 50 in a second: the last thousand are kept.
        while not over.wait(0.02):
            served.infer("affine", input=[[1.0, 2.0, 3.0, 4.0]])

    thread = threading.Thread(target=load)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.mark.usefixtures("asked")
@in_chromium
def test_links_are_followed_by_a_finger(
    served: ServedGateway, chromium: Browser
) -> None:
    chromium.resize(390, 800)
    chromium.call("Emulation.setTouchEmulationEnabled", enabled=True)
    chromium.open(served.url)
    for link, address, sign in (
        ("main a[href='#/models/affine']", "#/models/affine", ".tabs"),
        ("header [data-page=requests]", "#/requests", "main td a"),
        ("main td a", "#/requests/", ".story"),
        ("main a.crumb", "#/requests", "main td a"),
        # A row is a link as a whole.
        ("main td.n", "#/requests/", ".story"),
        ("header [data-page=log]", "#/log", "pre.log"),
        ("header [data-page=overview]", "#/", ".strip"),
    ):
        chromium.wait(f'document.querySelector("{link}") !== null')

        def is_followed(link: str = link, address: str = address) -> bool:
            chromium.tap(link)  # a table above may move it: then the tap misses
            found = chromium.evaluate(f"location.hash.startsWith({address!r})")
            return bool(found)

        until(is_followed, link)
        chromium.wait(f'document.querySelector("{sign}") !== null')
    check_quiet(chromium, served)


@pytest.mark.usefixtures("asked")
@in_chromium
@pytest.mark.parametrize(
    ("page", "row"),
    [
        ("#/", "tr.link a[href^='#/models']"),
        ("#/", "tr.link a[href^='#/requests']"),
        ("#/requests", "tr.link a"),
        ("#/models/affine", "tr.link a"),
    ],
)
def test_a_row_stays_while_a_finger_is_on_it(
    served: ServedGateway, chromium: Browser, page: str, row: str
) -> None:
    chromium.resize(390, 800)
    chromium.call("Emulation.setTouchEmulationEnabled", enabled=True)
    chromium.open(f"{served.url}/{page}")
    chromium.wait(f'document.querySelector("{row}") !== null')
    chromium.evaluate(
        "addEventListener('touchstart', (e) => { held = e.target.closest('tr.link'); })"
    )

    def is_held() -> bool:
        chromium.touch("touchStart", chromium.place(row))
        if chromium.evaluate("held !== null"):
            return True
        chromium.touch("touchEnd")
        return False

    until(is_held, "a finger is on a row")

    def updates() -> int:
        return sum("/v1/requests" in url for url in chromium.requests)

    before = updates()
    until(lambda: updates() > before + 2, "the page has asked again")
    assert chromium.evaluate("held.isConnected")
    chromium.touch("touchEnd")


@in_chromium
def test_plots_move_while_requests_run(
    served: ServedGateway, chromium: Browser
) -> None:
    over = threading.Event()

    def load() -> None:
        while not over.is_set():
            served.infer("affine", input=[[1.0, 2.0, 3.0, 4.0]])

    thread = threading.Thread(target=load)
    thread.start()
    try:
        chromium.open(served.url)
        points = "Number(document.querySelector('.plot')?.dataset.points ?? 0)"
        before = chromium.wait(points)
        chromium.wait(f"{points} > {before + 1}")
        label = chromium.evaluate("document.querySelector('.plot').ariaLabel")
        assert re.match(r"Requests per second: answered [1-9]", label)
        chromium.wait("document.querySelectorAll('.strip').length > 3")
    finally:
        over.set()
        thread.join()
    check_quiet(chromium, served)


@in_chromium
def test_a_digit_is_drawn_and_its_request_explained(
    served: ServedGateway, chromium: Browser
) -> None:
    chromium.open(f"{served.url}/#/models/digits")
    x, y = chromium.place(".sheet")
    chromium.mouse("mousePressed", x, y - 100)
    for step in range(-100, 101, 10):
        chromium.mouse("mouseMoved", x, y + step)
    chromium.mouse("mouseReleased", x, y + 100)
    chromium.wait_text("1", ".answer .big")
    chromium.wait_text("Explain this request", ".answer")
    chromium.click(".answer a")
    chromium.wait_text("Answered at", "main")
    chromium.wait_text("on cpu:", ".story")
    chromium.wait_text("digits, version 1", "main")
    check_quiet(chromium, served)


@in_chromium
def test_the_example_of_a_model(served: ServedGateway, chromium: Browser) -> None:
    chromium.open(f"{served.url}/#/models/digits")
    chromium.wait_text("Handwritten digits", "main")
    chromium.wait_text("Rows give the same answers alone and in a batch", "main")
    chromium.evaluate(
        "[...document.querySelectorAll('button')]"
        ".find(b => b.textContent === 'Use the example').click()"
    )
    chromium.wait_text("2", ".answer .big")
    check_quiet(chromium, served)


@in_chromium
def test_a_picture_and_what_is_wrong_with_a_request(
    served: ServedGateway, chromium: Browser
) -> None:
    chromium.open(f"{served.url}/#/models/photo")
    chromium.wait_text("Use a test picture", "main")
    chromium.evaluate(
        "[...document.querySelectorAll('button')]"
        ".find(b => b.textContent === 'Use a test picture').click()"
    )
    chromium.wait_text("colour FP32[1, 3]", ".answer")
    assert chromium.evaluate("document.querySelectorAll('.bars .top').length") == 1
    check_quiet(chromium, served)
    chromium.evaluate("location.hash = '#/models/affine'")
    chromium.wait("document.querySelector('textarea')?.value.includes('input')")
    chromium.evaluate("document.querySelector('textarea').value = '{}'")
    chromium.click(".run")
    chromium.wait_text("400 invalid_request", ".answer")


ODD = {
    "doubled": "(float16[n,2] x) => (float16[n,2] y) { y = Add (x, x) }",
    "wide": """(float[1,1] x) => (float[1,150528] y)
        <int64[2] size = {1, 150528}> { y = Expand (x, size) }""",
    "exact": "(uint64[n] x) => (uint64[n] y) { y = Identity (x) }",
    "constant": "() => (float[2] y) "
    "{ y = Constant <value = float[2] {0.25, 0.75}> () }",
    "vectors": "(string[n] text) => (float[n,2] embedding) "
    "{ large = Constant <value = float[1,2] {1e30, 1.0}> () row = Mul (large, large) "
    "size = Shape (text) one = Constant "
    "<value = int64[1] {1}> () many = Concat <axis = 0> (size, one) "
    "embedding = Expand (row, many) }",
}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    """Models with answers that browsers or pages have trouble with."""
    root = tmp_path_factory.mktemp("odd")
    head = '<ir_version: 8, opset_import: ["": 17]> model '
    for name, graph in ODD.items():
        onnx.save(onnx.parser.parse_model(head + graph), root / f"{name}.onnx")
    with ServedGateway(root) as served:
        yield served.wait_ready()


def try_it(page: Browser, text: str) -> None:
    """Run a request in JSON on the page of a model."""
    page.wait("document.querySelector('textarea') !== null")
    page.evaluate(f"document.querySelector('textarea').value = {text!r}")
    page.click(".run")


@in_chromium
@pytest.mark.parametrize(
    ("model", "inputs", "shown"),
    [
        ("doubled", '{"x": [[65504, 1]]}', "[Infinity,2]"),
        ("wide", '{"x": [[0.5]]}', "the highest 10 of 150528"),
        ("exact", '{"x": [18446744073709551615, 1]}', "[18446744073709551615,1]"),
        ("exact", '{"x": [9007199254740993]}', "9,007,199,254,740,993"),
        ("constant", "{}", "FP32[2]"),
    ],
)
def test_odd_answers_are_shown(
    odd: ServedGateway, chromium: Browser, model: str, inputs: str, shown: str
) -> None:
    chromium.open(f"{odd.url}/#/models/{model}")
    try_it(chromium, f'{{"inputs": {inputs}}}')
    chromium.wait_text(shown, ".answer")
    chromium.wait_text("Explain this request", ".answer")
    check_quiet(chromium, odd)


@in_chromium
def test_large_integers_of_an_example_stay_exact(
    tmp_path: Path, chromium: Browser
) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g ' + ODD["exact"]
    folder = tmp_path / "exact" / "1"
    folder.mkdir(parents=True)
    onnx.save(onnx.parser.parse_model(text), folder / "model.onnx")
    (tmp_path / "exact" / "config.toml").write_text("[example]\nx = [9007199254740993]")
    with ServedGateway(tmp_path) as served:
        chromium.open(f"{served.wait_ready().url}/#/models/exact")
        chromium.wait_text("-d '{", ".code pre")
        code = chromium.evaluate("document.querySelector('.code pre').innerText")
        assert "[9007199254740993]" in code
        chromium.wait("document.querySelector('textarea') !== null")
        value = chromium.evaluate("document.querySelector('textarea').value")
        assert "[9007199254740993]" in value
        chromium.click(".run")
        chromium.wait_text("9,007,199,254,740,993", ".answer .big")
        check_quiet(chromium, served)


@in_chromium
def test_infinite_vectors_of_texts_are_shown(
    odd: ServedGateway, chromium: Browser
) -> None:
    chromium.open(f"{odd.url}/#/models/vectors")
    chromium.click(".run")
    chromium.wait_text("NaN", ".answer .cosines")
    check_quiet(chromium, odd)


@in_chromium
def test_a_program_of_javascript_reads_infinity(
    odd: ServedGateway, chromium: Browser
) -> None:
    chromium.open(f"{odd.url}/#/models/doubled")
    chromium.wait_text("Call it from a program", "main")
    chromium.evaluate(
        "[...document.querySelectorAll('[role=tab]')]"
        ".find(b => b.textContent === 'JavaScript').click()"
    )
    code = chromium.evaluate("document.querySelector('.code pre').innerText")
    sent = code.replace("[1,1]", "[65504,1]")
    outputs = chromium.evaluate(f"(async () => {{ {sent}; return outputs; }})()")
    assert outputs[0]["data"] == ["Infinity", 2]


@in_chromium
def test_a_model_that_is_not_loaded_has_no_form(
    tmp_path: Path, chromium: Browser
) -> None:
    models.affine(tmp_path / "affine.popef")
    options = ("--model-control-mode", "explicit")
    with ServedGateway(tmp_path, *options) as served:
        served.wait_ready()
        chromium.open(f"{served.url}/#/models/affine")
        chromium.wait_text("Model not loaded", "main")


@in_chromium
def test_an_empty_server_tells_how_to_load_a_model(
    tmp_path: Path, chromium: Browser
) -> None:
    with ServedGateway(tmp_path) as served:
        chromium.open(served.wait_ready().url)
        chromium.wait_text("popgate load NAME", "main")


@in_chromium
@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (429, "deadline_unreachable", "refused the request"),
        (429, "too_many_requests", "refused the request"),
        (499, "cancelled", "client disconnected"),
        (504, "deadline_exceeded", "failed to answer"),
    ],
)
def test_a_failure_has_its_own_reason(
    served: ServedGateway, chromium: Browser, status: int, code: str, words: str
) -> None:
    chromium.open(served.url)
    request = {"status": status, "code": code, "at": 0, "total_ms": 1.5, "device": ""}
    told = chromium.evaluate(
        f"import('./pages/timeline.js').then((m) => m.story({json.dumps(request)}))"
    )
    assert f"{words}: {status} {code} at" in told


@in_chromium
@pytest.mark.parametrize("name", ["%", "a%zz/b", "none"])
def test_a_model_that_is_none(
    served: ServedGateway, chromium: Browser, name: str
) -> None:
    chromium.open(f"{served.url}/#/models/{name}")
    chromium.wait_text("Model not found", "main")
    chromium.wait_text(name, "main h1")
    assert not [error for error in chromium.errors if "404" not in error]


@in_chromium
@pytest.mark.parametrize("model", ["digits", "photo"])
def test_snippets_work_as_they_are_pasted(
    served: ServedGateway, chromium: Browser, model: str
) -> None:
    chromium.open(f"{served.url}/#/models/{model}")
    chromium.wait_text("Call it from a program", "main")
    texts = []
    for name in ("curl", "Python", "JavaScript"):
        chromium.evaluate(
            "[...document.querySelectorAll('[role=tab]')]"
            f".find(b => b.textContent === '{name}').click()"
        )
        texts.append(chromium.evaluate("document.querySelector('.code pre').innerText"))
    shell, python, javascript = texts
    path = "/opt/none:/usr/local/bin:/usr/bin:/bin:" + str(Path(sys.executable).parent)
    for command in (["bash", "-c", shell], [sys.executable, "-c", python]):
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env={"PATH": path}
        )
        assert ("digit" if model == "digits" else "colour") in done.stdout
    outputs = chromium.evaluate(f"(async () => {{ {javascript}; return outputs; }})()")
    assert outputs[0]["data"]
    check_quiet(chromium, served)


@in_chromium
def test_a_key_is_typed_in(tmp_path: Path, chromium: Browser) -> None:
    models.affine(tmp_path / "affine.popef")
    rule = "statistics,metadata:x-team=open sesame"
    with ServedGateway(tmp_path, "--restricted-api", rule) as served:
        served.wait_ready()
        chromium.open(served.url)
        chromium.wait_text("expecting header 'x-team'", "#trouble")
        chromium.click("#open-key")
        for field, value in (("key-name", "x-team"), ("key-value", "open sesame")):
            chromium.evaluate(f"document.getElementById('{field}').focus()")
            chromium.call("Input.insertText", text=value)
        chromium.click("#key .primary")
        chromium.wait_text("affine", "main")
        chromium.wait("document.querySelector('#trouble').hidden")


@in_chromium
def test_enter_takes_a_key_and_cancel_does_not(
    served: ServedGateway, chromium: Browser
) -> None:
    def fill_in() -> None:
        chromium.click("#open-key")
        chromium.evaluate("document.getElementById('key-api').focus()")
        chromium.call("Input.insertText", text="secret")

    chromium.open(served.url)
    chromium.wait_text("Overview", "main")
    fill_in()
    chromium.click("#key .quiet")
    chromium.wait("!document.getElementById('key').open")
    fill_in()
    assert chromium.evaluate("sessionStorage.getItem('popgate.key')") is None
    enter = {"key": "Enter", "text": "\r", "windowsVirtualKeyCode": 13}
    chromium.call("Input.dispatchKeyEvent", type="keyDown", **enter)
    chromium.wait("sessionStorage.getItem('popgate.key')?.includes('secret')")
    chromium.evaluate("sessionStorage.clear()")


@in_chromium
def test_the_title_names_the_page(served: ServedGateway, chromium: Browser) -> None:
    for page, title in (
        ("#/", "Overview"),
        ("#/requests", "Requests"),
        ("#/log", "Log"),
        ("#/models/digits", "digits"),
        ("#/bogus", "Page not found"),
    ):
        chromium.open(f"{served.url}/{page}")
        chromium.wait(f"document.title === '{title} · PopGate'")


KEYS = """
anonymous = ["pages"]
[[key]]
name = "ops"
sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
"""


@in_chromium
def test_a_page_that_all_may_open_shows_what_its_key_may_see(
    tmp_path: Path, chromium: Browser
) -> None:
    models.affine(tmp_path / "affine.popef")
    (tmp_path / "keys.toml").write_text(KEYS)
    options = ["--keys", str(tmp_path / "keys.toml"), "--access-log", "all"]
    with ServedGateway(tmp_path, *options) as served:
        served.wait_ready()
        chromium.open(served.url)
        chromium.wait_text("an API key is required", "#trouble")
        chromium.click("#open-key")
        chromium.evaluate("document.getElementById('key-api').focus()")
        chromium.call("Input.insertText", text="secret")
        chromium.click("#key .primary")
        chromium.wait("document.querySelector('#trouble').hidden")
        chromium.wait_text("affine", "main")
        chromium.evaluate("location.hash = '#/models/affine'")
        chromium.click(".run")
        chromium.wait_text("output FP32[1, 4]", ".answer")
        line = served.wait_line("POST /v1/models/affine/infer 200")
        assert " key=ops " in line
        assert "secret" not in served.output


def press(page: Browser, title: str) -> None:
    """Press the button of the page with this title."""
    page.wait(
        "[...document.querySelectorAll('main button')]"
        f".some(b => b.textContent === '{title}' && !b.disabled)"
    )
    page.evaluate(
        "[...document.querySelectorAll('main button')]"
        f".find(b => b.textContent === '{title}').click()"
    )


MANAGING = KEYS + 'groups = ["manage", "infer", "metadata", "metrics", "pages"]\n'


@in_chromium
def test_a_model_is_unloaded_and_loaded_with_the_key_of_the_page(
    tmp_path: Path, chromium: Browser
) -> None:
    models.affine(tmp_path / "affine.popef")
    (tmp_path / "keys.toml").write_text(MANAGING)
    with ServedGateway(tmp_path, "--keys", str(tmp_path / "keys.toml")) as served:
        served.wait_ready()
        chromium.open(f"{served.url}/#/models/affine")
        press(chromium, "Unload")
        chromium.wait_text("This page may not unload models", ".manage")
        chromium.wait_text("may manage models under Key", ".manage")
        held = {"x-api-key": "secret"}
        path = "/v1/models/affine"
        assert served.client.get(path, headers=held).json()["state"] == "READY"
        chromium.click("#open-key")
        chromium.evaluate("document.getElementById('key-api').focus()")
        chromium.call("Input.insertText", text="secret")
        chromium.click("#key .primary")
        # The page takes the key a moment after the dialog has closed.
        chromium.wait("sessionStorage.getItem('popgate.key') !== null")
        press(chromium, "Unload")
        chromium.wait_text("Unloaded", ".manage")
        assert served.client.get(path, headers=held).json()["state"] != "READY"
        chromium.wait_text("Model not loaded", "main")
        press(chromium, "Load")
        chromium.wait_text("Loaded", ".manage")
        assert served.client.get(path, headers=held).json()["state"] == "READY"
        chromium.wait_text("Tensors", "main")


@in_chromium
def test_tabs_go_by_keys(served: ServedGateway, chromium: Browser) -> None:
    chromium.open(f"{served.url}/#/requests")
    chromium.wait("document.querySelector('[role=tab]') !== null")
    chromium.evaluate("document.querySelector('[role=tab]').focus()")
    chromium.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
    until(
        lambda: chromium.evaluate("document.activeElement.textContent") == "Slowest",
        "the next tab has the focus",
    )
    assert chromium.evaluate("document.activeElement.ariaSelected") == "true"
    check_quiet(chromium, served)


# -- the documentation page


@in_chromium
def test_the_documentation_asks_for_a_missing_file(
    served: ServedGateway, chromium: Browser
) -> None:
    chromium.open(f"{served.url}/docs#/loaded%20models/infer_photo")
    chromium.wait("document.querySelector('.is-open input[type=file]') !== null")
    chromium.click(".is-open .execute")
    chromium.wait("document.activeElement.matches('input[type=file]:invalid')")
    said = chromium.evaluate("document.activeElement.validationMessage")
    assert "file" in said
    assert not any("/v1/models/photo/infer" in url for url in chromium.requests)


# -- the last hour and the log


def test_the_last_hour_is_in_columns(served: ServedGateway) -> None:
    found = served.client.get("/v1/history").json()
    assert found["interval"] == 10
    lengths = {len(column) for name, column in found.items() if name != "interval"}
    assert len(lengths) == 1
    asked = served.client.get("/v1/history", params={"model": "nothing"}).json()
    assert not any(asked["rate"])


@in_chromium
def test_the_log_is_for_those_who_manage(
    served: ServedGateway, tmp_path: Path, chromium: Browser
) -> None:
    path = "/v1/models/%3Cb%3Emissing%1B%5B31m/infer"
    assert served.client.post(path, json={}).status_code == 404

    def has_come() -> bool:
        lines = served.client.get("/v1/log").json()["lines"]
        return any("<b>missing" in line and "\x1b" not in line for line in lines)

    until(has_come)
    assert len(served.client.get("/v1/log?limit=1").json()["lines"]) == 1
    assert served.client.get("/v1/log?limit=501").status_code == 400
    chromium.open(f"{served.url}/#/log")
    chromium.wait_text("<b>missing", "pre.log")
    models.affine(tmp_path / "affine.popef")
    with ServedGateway(tmp_path, POPGATE_TRUST_LOOPBACK="0") as closed:
        closed.wait_ready()
        refused = closed.client.get("/v1/log")
        assert refused.status_code == 403
        assert refused.json()["code"] == "management_is_closed"
        chromium.open(f"{closed.url}/#/log")
        chromium.wait_text("This page may not read the log", "main")
        told = chromium.evaluate("document.querySelector('main .why').innerText")
        assert told.endswith("--keys")  # no key would help here


@in_chromium
def test_plots_show_two_minutes_or_an_hour(
    served: ServedGateway, chromium: Browser
) -> None:
    assert ask(served, "affine", "for-the-plots") == 200
    chromium.open(served.url)
    chromium.wait("document.querySelector('.plot canvas') !== null")
    hour = "[...document.querySelectorAll('.spans button')][1]"
    chromium.evaluate(f"{hour}.click()")
    assert chromium.evaluate(f"{hour}.getAttribute('aria-pressed')") == "true"
    kept = len(served.client.get("/v1/history").json()["time"])
    shown = "document.querySelector('.plot').textContent"
    if not kept:
        chromium.wait(f"{shown}.includes('Waiting for the first measurements')")
    chromium.wait("Number(document.querySelector('.plot').dataset.points) > 0")
