"""A sample of onnx's backend tests over a real server; all: `make conformance`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.http as triton

from bench.cases.backend import OIP_DATATYPES, Case, load_cases
from bench.cases.sample import ODD, sample
from bench.conformance import call, client_cannot, compile_cases, in_process
from bench.servers.server import HOST, gateway
from plugins.onnx.tests.compiler.test_backend_cases import NODE_MODULES

COUNT = 40


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Cases that ONNX Runtime passes in this process."""
    passing, _ = in_process(load_cases(NODE_MODULES)[0])
    return sample(passing, COUNT)


@pytest.fixture(scope="module")
def client(
    tmp_path_factory: pytest.TempPathFactory, cases: list[Case]
) -> Iterator[triton.InferenceServerClient]:
    """The stock client of a gateway that serves the whole sample."""
    folder = tmp_path_factory.mktemp("conformance") / "models"
    refused = compile_cases(cases, folder)
    assert refused == []
    with gateway(folder, devices="cpu:1") as server:
        server.wait_ready()
        with triton.InferenceServerClient(f"{HOST}:{server.port}") as stock:
            yield stock


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_answers(
    client: triton.InferenceServerClient, cases: list[Case], binary: bool
) -> None:
    asked = [case for case in cases if binary or not client_cannot(case)]
    assert len(asked) > COUNT // 2
    for case in asked:
        try:
            call(client, case, binary=binary)
        except Exception as error:
            error.add_note(repr(case))
            raise


def test_sample_has_every_datatype_and_oddity(cases: list[Case]) -> None:
    seen = frozenset().union(*(case.datatypes for case in cases))
    assert seen == set(OIP_DATATYPES.values())
    assert [name for name, is_odd in ODD.items() if not any(map(is_odd, cases))] == []


def test_every_model_is_in_the_index(
    client: triton.InferenceServerClient, cases: list[Case]
) -> None:
    index = {
        each["name"]: each["state"] for each in client.get_model_repository_index()
    }
    assert index == {case.name: "READY" for case in cases}


def test_compiled_files_are_found_by_name(cases: list[Case], tmp_path: Path) -> None:
    assert compile_cases(cases[:2], tmp_path / "models") == []
    names = {path.stem for path in (tmp_path / "models").glob("*.popef")}
    assert names == {case.name for case in cases[:2]}
