"""What `popgate run` feeds to a model: what is given, the rest synthetic.

Covers: plugins/tools/src/popgate_tools/synthetic.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.cli.errors import EXIT_USAGE, CommandError
from engine import DataDesc, Tensor
from popef_io import DataType
from popgate_client import tensor_of
from popgate_runtime.run_data import make_inputs, save
from tests.support import file_size_limit

DESCS = [
    DataDesc("image", (-1, 4), DataType.F32),
    DataDesc("index", (-1,), DataType.S64),
]


def inputs(
    *given: str,
    descs: list[DataDesc] = DESCS,
    shapes: tuple[str, ...] = (),
    batch: int = 0,
    iterations: int = 1,
    seed: int = 0,
    fill: bool = True,
) -> dict[str, Tensor]:
    return make_inputs(
        descs,
        given,
        shapes,
        batch=batch,
        batched=iterations > 0,
        iterations=iterations,
        seed=seed,
        fill=fill,
    )


def test_what_is_not_given_is_synthetic() -> None:
    made = inputs("image=[[1, 2, 3, 4], [5, 6, 7, 8]]", batch=2)
    np.testing.assert_array_equal(made["image"].numpy(), np.arange(1, 9).reshape(2, 4))
    assert made["index"].shape == (2,)
    assert set(made["index"].numpy()) <= {0, 1}
    assert set(inputs("image=[[1, 2, 3, 4]]", fill=False)) == {"image"}


def test_shapes_of_synthetic_inputs() -> None:
    fixed = [DataDesc("x", (3, 4), DataType.F16)]
    assert inputs(descs=fixed)["x"].shape == (3, 4)
    assert inputs(descs=fixed, batch=7)["x"].shape == (7, 4)
    assert inputs(descs=fixed, iterations=5)["x"].shape == (15, 4)
    with pytest.raises(CommandError, match="--batch 7: the inputs of the model have"):
        inputs(descs=fixed, iterations=0, batch=7)
    assert inputs(shapes=("image=2,4",), batch=9)["image"].shape == (2, 4)
    scalar = [DataDesc("x", (), DataType.BOOL)]
    assert inputs(descs=scalar, batch=9)["x"].shape == ()


def test_every_data_type_can_be_synthetic() -> None:
    for data_type in DataType:
        desc = DataDesc("x", (2, 3), data_type)
        tensor = inputs(descs=[desc])["x"]
        assert (tensor.data_type, tensor.shape) == (data_type, (2, 3))


def test_the_seed_decides() -> None:
    first, again, other = (inputs(seed=n)["image"].tobytes() for n in (1, 1, 2))
    assert first == again != other


def test_an_archive_gives_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, image=np.ones((1, 4)), index=np.array([3], np.uint8))
    made = inputs(str(path))
    assert made["image"].numpy().dtype == np.float32
    assert made["index"].numpy().tolist() == [3]
    with pytest.raises(CommandError, match="its arrays are image, index"):
        inputs(f"other={path}", descs=[DataDesc("other", (1,), DataType.F32)])


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        (("x=1",), {}, "no input 'x'; the model takes image FP32"),
        (("image",), {}, "expected NAME=VALUE"),
        (("image=[1",), {}, "neither a .npy or .npz file nor"),
        (("nothing.npz",), {}, "nothing.npz cannot be read"),
        (("image=nothing.npy",), {}, "nothing.npy cannot be read"),
        (("index=[1.5]",), {}, "do not fit INT64"),
        ((), {"shapes": ("image=a,4",)}, "expected whole numbers"),
        ((), {"shapes": ("x=4",)}, "no input 'x'"),
        ((), {"batch": 10**9}, "elements"),
        (
            (),
            {"descs": [DataDesc("x", None, DataType.F32)]},
            "may have any number of dimensions",
        ),
    ],
)
def test_mistakes_are_the_callers(
    given: tuple[str, ...], options: dict[str, object], words: str
) -> None:
    with pytest.raises(CommandError, match=words) as caught:
        inputs(*given, **options)  # type: ignore[arg-type]
    assert caught.value.exit_code == EXIT_USAGE


def test_a_file_that_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(CommandError, match=r"bad\.npz"):
        inputs(str(tmp_path / "bad.npz"))


def test_an_archive_holds_outputs_of_any_name(tmp_path: Path) -> None:
    names = ["file", "allow_pickle", "a/b:0 ä", "self"]
    save([tensor_of(name, [[0.5, 1.5]]) for name in names], tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz") as found:
        assert {name: found[name].tolist() for name in found} == {
            name: [[0.5, 1.5]] for name in names
        }


def test_strings_that_a_file_of_arrays_cannot_hold(tmp_path: Path) -> None:
    save([tensor_of("y", [b"a", b""])], tmp_path / "y.npy")
    assert np.load(tmp_path / "y.npy").tolist() == [b"a", b""]
    with pytest.raises(CommandError, match="'y' has strings that end in a zero byte"):
        save([tensor_of("y", [b"a\0", b"b"])], tmp_path / "z.npz")
    assert not (tmp_path / "z.npz").exists()


def test_a_file_that_cannot_be_written_completely(tmp_path: Path) -> None:
    large = tensor_of("y", np.ones(100_000, np.float32))
    for name in ("y.npy", "y.npz"):
        with file_size_limit(1 << 16), pytest.raises(CommandError, match=name) as full:
            save([large], tmp_path / name)
        assert "None" not in str(full.value)
        assert not (tmp_path / name).exists()
