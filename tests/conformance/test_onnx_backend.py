"""A sample of onnx's backend tests over a real server; all: `make conformance`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.http as triton

from bench.cases import OIP_DATATYPES, Case, load_cases
from bench.conformance import call, client_cannot, compile_cases, in_process
from bench.sample import ODD, sample
from bench.serving import HOST, gateway

COUNT = 60

PASSING, _ = in_process(load_cases()[0])
CASES = sample(PASSING, COUNT)


@pytest.fixture(scope="module")
def client(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[triton.InferenceServerClient]:
    """The stock client of a gateway that serves the whole sample."""
    folder = tmp_path_factory.mktemp("conformance") / "models"
    refused = compile_cases(CASES, folder)
    assert refused == []
    with gateway(folder, devices="cpu:1") as server:
        server.wait_ready()
        with triton.InferenceServerClient(f"{HOST}:{server.port}") as stock:
            yield stock


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_answer(client: triton.InferenceServerClient, case: Case, binary: bool) -> None:
    if not binary and (reason := client_cannot(case)):
        pytest.skip(reason)
    call(client, case, binary=binary)


def test_sample_has_every_datatype_and_oddity() -> None:
    seen = frozenset().union(*(case.datatypes for case in CASES))
    assert seen == set(OIP_DATATYPES.values())
    assert [name for name, is_odd in ODD.items() if not any(map(is_odd, CASES))] == []


def test_every_model_is_in_the_index(client: triton.InferenceServerClient) -> None:
    index = {
        each["name"]: each["state"] for each in client.get_model_repository_index()
    }
    assert index == {case.name: "READY" for case in CASES}


def test_compiled_files_are_found_by_name(tmp_path: Path) -> None:
    assert compile_cases(CASES[:2], tmp_path / "models") == []
    names = {path.stem for path in (tmp_path / "models").glob("*.popef")}
    assert names == {case.name for case in CASES[:2]}
