"""Pictures and forms posted to a server, as curl, httpx and both clients post them.

Covers: app/codec/files/file_body.py, app/codec/files/form.py.
"""

from __future__ import annotations

import base64
import io
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from popgate import Client
from tests.app.served import ServedGateway

MODEL = '''
import io
from PIL import Image

class Model:
    """The size of each picture, and its format."""

    inputs = {"image": "BYTES[-1]"}
    outputs = {"size": "INT64[-1,2]", "format": "BYTES[-1]"}

    def __call__(self, image):
        opened = [Image.open(io.BytesIO(one)) for one in image]
        return {"size": [one.size for one in opened],
                "format": [one.format for one in opened]}
'''
TWO = """
class Model:
    inputs = {"image": "BYTES[-1]", "top": "INT64[-1]"}
    outputs = {"bytes": "INT64[-1]"}

    def __call__(self, image, top):
        return {"bytes": [len(one) * n for one, n in zip(image, top)]}
"""


def picture(kind: str = "JPEG", size: tuple[int, int] = (640, 480)) -> bytes:
    file = io.BytesIO()
    Image.effect_noise(size, 80).convert("RGB").save(file, kind)
    return file.getvalue()


JPEG, PNG = picture(), picture("PNG", (31, 17))
RAW, SMALL = {"content-type": "image/jpeg"}, [31, 17]


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two workers"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("models")
    for name, code in (("look", MODEL), ("two", TWO)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.py").write_text(code)
    workers = str(request.param)
    with ServedGateway(root, "--allow-python", "--workers", workers) as gateway:
        yield gateway.wait_ready()


def post(served: ServedGateway, name: str = "look", **options: Any) -> httpx.Response:
    return served.client.post(f"/v1/models/{name}/infer", **options)


def sizes(response: httpx.Response) -> list[int]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    data: list[int] = response.json()["outputs"][0]["data"]
    return data


@pytest.mark.parametrize(
    "options",
    [
        {"content": JPEG, "headers": RAW},
        {"content": JPEG},
        {"content": JPEG, "headers": {"content-type": "application/octet-stream"}},
        {"content": [JPEG[:9000], JPEG[9000:]], "headers": RAW},  # in chunks
        {"files": {"image": ("cat.jpg", JPEG, "image/jpeg")}},
        {"files": {"image": JPEG}},
        {"json": {"instances": [{"b64": base64.b64encode(JPEG).decode()}]}},
    ],
    ids=["raw", "no type", "octets", "chunked", "form", "plain form", "predict"],
)
def test_a_picture(served: ServedGateway, options: dict[str, Any]) -> None:
    if "json" in options:
        answer = served.client.post("/v1/models/look:predict", **options).json()
        assert answer["predictions"][0]["size"] == [640, 480]
    else:
        assert sizes(post(served, **options)) == [640, 480]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--data-binary", "@p.png", "-H", "Content-Type: image/png"],
        ["--data-binary", "@p.png"],
        ["-F", "image=@p.png"],
        ["-T", "p.png", "-X", "POST"],
        ["-F", "image=@p.png", "-H", "Expect: 100-continue"],
    ],
)
def test_curl(served: ServedGateway, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "p.png").write_bytes(PNG)
    url = f"{served.url}/v1/models/look/infer"
    command = ["curl", "-sS", url, *arguments]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert b"[31,17]" in answer.stdout.replace(b" ", b""), answer.stdout


def test_several_pictures_and_a_field(served: ServedGateway) -> None:
    files = [("image", ("a", JPEG)), ("image", ("b", PNG))]
    assert sizes(post(served, files=files)) == [640, 480, *SMALL]
    asked = post(served, "two", files={"image": ("a", b"abcd")}, data={"top": "3"})
    assert sizes(asked) == [12]


def test_a_large_form_is_read_in_a_thread(served: ServedGateway) -> None:
    large = bytes(3_000_000)
    files = {"image": ("a", large), "top": (None, "1")}
    assert sizes(post(served, "two", files=files)) == [len(large)]


def test_both_clients(served: ServedGateway) -> None:
    with Client(served.url) as client:
        assert client.infer("look", PNG)["size"].tolist() == [SMALL]


def test_what_is_wrong_is_said(served: ServedGateway) -> None:
    answer = post(served, "two", content=JPEG, headers=RAW)
    assert (answer.status_code, answer.json()["code"]) == (
        415,
        "unsupported_media_type",
    )
    assert "one part for each input" in answer.json()["error"]
    assert post(served, "two", content=JPEG).status_code == 400
    answer = post(served, files={"file": ("cat.jpg", JPEG)})
    assert "unexpected inference input 'file'" in answer.json()["error"]
    answer = post(served, content=JPEG, headers={**RAW, "accept": "image/png"})
    assert answer.status_code == 406
