"""One gateway with a few small models, for the tests that do not change it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.app.served import Serve, ServedGateway, share_memory, trace_to
from tests.engine import models
from tests.leaks import keeping


def fill_repository(root: Path) -> Path:
    """Models of every kind: see what each is in `tests/engine/models.py`."""
    models.affine(root / "affine.popef")
    models.text(root / "text.popef")
    models.weighted(root / "weighted.popef")
    models.gather(root / "gather.popef")
    for version in ("1", "2"):
        (root / "many" / version).mkdir(parents=True)
    models.mean_over_rows(root / "many" / "1" / "m.popef")
    models.affine(root / "many" / "2" / "m.popef")
    (root / "broken.popef").write_bytes(b"not a container")
    return root


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_repository(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def gateway(repository: Path) -> Iterator[ServedGateway]:
    """Shared by everybody: ask, but leave it as it is."""
    with ServedGateway(repository, "--server-name", "tester") as served:
        yield served.wait_ready()


@contextmanager
def serving(folders: pytest.TempPathFactory) -> Iterator[Serve]:
    """Give a function that starts gateways, and end them."""
    with ExitStack() as stack:

        def start(fill: Callable[[Path], object], *options: str) -> ServedGateway:
            root = folders.mktemp("models")
            fill(root)
            with keeping():
                return stack.enter_context(ServedGateway(root, *options)).wait_ready()

        yield start


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Gateways for a module's own fixtures, which say what lies in the repository."""
    with serving(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def extended_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("extensions")


@pytest.fixture(scope="session")
def extended(extended_folder: Path) -> Iterator[ServedGateway]:
    """With the protocol's extensions on. Who changes settings takes them back."""
    folder = extended_folder
    root = folder / "models"
    root.mkdir()
    models.affine(root / "affine.popef")
    models.text(root / "text.popef")
    (root / "affine").mkdir()
    (root / "affine" / "config.toml").write_text('labels = {output = "labels.txt"}')
    (root / "affine" / "labels.txt").write_text("zero\none\ntwo\n")
    options = [*trace_to(folder / "trace.json"), *share_memory()]
    options += ["--restricted-api", "statistics:x-stats=open"]
    options += ["--base-path", "/some/base/", "--server-version", "2.73"]
    with ServedGateway(root, *options) as served:
        yield served.wait_ready()
