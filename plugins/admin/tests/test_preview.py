"""What would be served: the same as what is served, and every mistake by its file."""

from __future__ import annotations

from pathlib import Path

import build_popef
import numpy as np
import pytest

from app.api.examples import shown_shape
from popgate_admin.preview import ModelPreview, RepositoryPreview, preview_repository
from popgate_onnx.compile_cache import OnnxCompileCache
from tests.app.repository.test_repository import bend
from tests.app.served import NOTHING_TAKEN, ServedGateway
from tests.engine import models


def preview(root: Path, devices: int = 1) -> RepositoryPreview:
    cache = OnnxCompileCache(root.parent / "cache")
    return preview_repository(root, cache, NOTHING_TAKEN, devices=devices)


def model(found: RepositoryPreview, name: str) -> ModelPreview:
    return next(m for m in found.models if m.name == name)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def test_it_says_what_the_server_says(repository: Path, gateway: ServedGateway) -> None:
    found = preview_repository(
        repository, OnnxCompileCache(repository / ".cache"), NOTHING_TAKEN
    )
    listed = gateway.client.get("/v1/models").json()["models"]
    assert [m["name"] for m in listed] == [m.name for m in found.models]
    for shown in listed:
        mine = model(found, shown["name"])
        assert (shown["state"] == "READY") == mine.is_served
        if not mine.is_served:
            continue
        assert shown["version"] == str(mine.versions[-1].version)
        for version in mine.versions:
            path = f"/v2/models/{mine.name}/versions/{version.version}"
            metadata = gateway.client.get(path).json()
            config = gateway.client.get(f"{path}/config").json()
            spec = version.spec
            assert spec is not None
            assert config["max_batch_size"] == spec.max_batch_size
            for theirs, tensors in (
                (metadata["inputs"], spec.inputs),
                (metadata["outputs"], spec.outputs),
            ):
                assert theirs == [
                    {
                        "name": t.name,
                        "datatype": t.datatype,
                        "shape": shown_shape(spec, t),
                    }
                    for t in tensors
                ]


def test_memory_and_devices(root: Path) -> None:
    size = models.affine(root / "m.popef").stat().st_size
    (root / "m").mkdir()
    options = root / "m" / "config.toml"
    for text, devices, memory in (
        ("instances = 4", 2, 2 * size),
        ("instances = 1", 2, size),
        ('instances = 2\nmemory = "1GiB"', 2, 1 << 30),
        ("instances = 2\ndevices = [1]", 2, size),
    ):
        options.write_text(text)
        found = preview(root, devices)
        assert found.is_good
        assert model(found, "m").memory == memory
    assert not preview(root, 1).is_good
    assert not model(preview(root, 1), "m").is_served


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("config.toml", "instences = 2", "m/config.toml: unknown key 'instences' (did"),
        ("config.toml", "[", "m/config.toml cannot be read: "),
        (
            "config.toml",
            "devices = [0]\ninstances = 1\nversions = [7]",
            "m: versions = 7",
        ),
        (
            "config.toml",
            "warmup = {samples = [{inputs = {z = {}}}]}",
            "m/1: warm-up: t",
        ),
        ("config.toml", "sequence = {start = 'z'}", "m/1: "),
        ("config.toml", "labels = {z = ['a']}", "m/1: labels name"),
        ("config.toml", "optional_inputs = ['z']", "m/1: optional_inputs names 'z'"),
        ("1/m.popef", "x", "m/1/m.popef, blob 0, offset 0: not a PopGate container"),
        ("1/other.onnx", "x", ""),
    ],
)
def test_mistakes_begin_with_the_file(
    root: Path, file: str, text: str, problem: str
) -> None:
    (root / "m" / "1").mkdir(parents=True)
    models.affine(root / "m" / "1" / "m.popef")
    (root / "m" / file).write_text(text)
    found = preview(root)
    if problem:
        (said,) = found.all_problems
        assert said.startswith(problem)
        assert not model(found, "m").is_served
    else:
        assert found.is_good


def test_ensembles_that_cannot_be(root: Path) -> None:
    for name, part in (("a", "b"), ("b", "a"), ("lone", "none")):
        (root / name).mkdir()
        text = f'[[ensemble.step]]\nmodel = "{part}"'
        (root / name / "config.toml").write_text(text)
    problems = "\n".join(preview(root).all_problems)
    assert "the ensemble would run itself" in problems
    assert "lone/1: step 1 (none): model 'none' would not be served" in problems


def test_what_looks_meant_and_is_not_read_is_noted(root: Path) -> None:
    models.affine(root / "m.popef")
    for name in ("v1", "01", "warm-up"):
        (root / "m" / name).mkdir(parents=True)
    for name in ("config.yaml", "confg.toml", "extra.onnx", "notes.txt"):
        (root / "m" / name).write_text("")
    (root / "a b.popef").write_text("")
    found = preview(root)
    assert found.problems == (
        "'a b': invalid model name (letters, digits and '_.,+-')",
    )
    notes = [note.split(":")[0] for note in model(found, "m").notes]
    assert notes == [
        "m/01",
        "m/confg.toml",
        "m/config.yaml",
        "m/extra.onnx",
        "m/v1",
        "m/warm-up",
    ]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("versions = [1, 7]", "m: versions = 1, 7, but the folder lacks 7"),
        ('save_outputs = "out"', "m/1: save_outputs has no effect: the model has no"),
        ("ragged = {inputs = {z = 0}}", "m/1: rows of different lengths run separat"),
        ("ragged = {enabled = false, inputs = {z = 0}}", ""),
    ],
)
def test_options_without_effect_are_noted(root: Path, text: str, note: str) -> None:
    (root / "m" / "1").mkdir(parents=True)
    models.affine(root / "m" / "1" / "m.popef")
    (root / "m" / "config.toml").write_text(text)
    found = preview(root)
    assert found.is_good
    assert "".join(model(found, "m").notes)[: len(note) or None] == note


def test_the_folder_of_one_model(root: Path) -> None:
    (root / "simple" / "1").mkdir(parents=True)
    models.affine(root / "simple" / "1" / "m.popef")
    (root / "simple" / "config.toml").write_text("")
    (problem,) = preview(root / "simple").all_problems
    assert problem.startswith("simple is the folder of one model")
    (root / "simple" / "config.toml").unlink()
    assert preview(root / "simple").problems == (problem,)


def test_a_warm_up_that_only_running_shows_to_fail(root: Path) -> None:
    """The index is in order but for its value."""
    (root / "m" / "1").mkdir(parents=True)
    models.gather(root / "m" / "1" / "m.popef")
    (root / "m" / "warmup").mkdir()
    (root / "m" / "warmup" / "far").write_bytes(np.array([99], np.int64).tobytes())
    options = "[[warmup.samples]]\nname = 'far'\ninputs.index = { file = 'far' }"
    (root / "m" / "config.toml").write_text(options)
    (problem,) = preview(root).all_problems
    assert problem.startswith("m/1: warm-up with sample 'far' failed: ")
    (root / "m" / "warmup" / "far").write_bytes(np.array([1], np.int64).tobytes())
    assert preview(root).is_good


def test_a_file_of_several_models_is_served_once_one_is_chosen(root: Path) -> None:
    two = build_popef.build_two_models(root)
    (problem,) = preview(root).all_problems
    assert "name one of 'double', 'triple' (option executable)" in problem
    assert "executable_name" not in problem
    (root / two.stem).mkdir()
    (root / two.stem / "config.toml").write_text('executable = "triple"')
    found = preview(root)
    assert found.all_problems == []
    assert model(found, two.stem).is_served


def test_damage_that_shows_where_the_content_is_used(root: Path) -> None:
    models.affine(root / "m.popef")
    said = bend(root / "m.popef")
    (problem,) = preview(root).all_problems
    assert said in problem
