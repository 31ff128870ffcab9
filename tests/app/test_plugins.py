"""The plugin that the documentation shows, installed and served.

Covers: app/plugins.py, app/repository/formats.py, app/api/plugin_routes.py,
app/serving/forms.py.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from onnx import TensorProto, helper, save_model

from app.config.config_keys import ModelConfigError
from app.config.model_options import read_options
from app.plugins import COMMANDS, MODEL_FORMATS, ROUTES, _all_points, _points, plugins
from app.run import NO_PLUGIN
from tests.app.served import ROOT, ServedGateway
from tests.docs.reader import read_blocks


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip has installed the plugin of the page."""
    folder = tmp_path_factory.mktemp("plugin")
    for block in read_blocks("docs/how-to/write-a-plugin.md"):
        first = block.text.split("\n", 1)[0]
        if first.startswith("# demo/"):
            path = folder / first.removeprefix("# ")
            path.parent.mkdir(exist_ok=True)
            path.write_text(block.text)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
    pip += ["--no-build-isolation", "--no-index", "--target", str(folder / "site")]
    subprocess.run([*pip, "./demo"], cwd=folder, check=True, timeout=120)
    return folder / "site"


@pytest.fixture(scope="module")
def served(
    installed: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("models")
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2])
        for name in "xy"
    )
    for name in ("scaled", "plain"):
        folder = root / name / "1"
        folder.mkdir(parents=True)
        graph = helper.make_graph(
            [helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y]
        )
        opset = [helper.make_opsetid("", 17)]
        save_model(
            helper.make_model(graph, opset_imports=opset, ir_version=8),
            folder / "model.onnx",
        )
    (root / "scaled" / "1" / "scale.json").write_text('{"by": 3}')
    (root / "scaled" / "config.toml").write_text("[scaled]\ntimes = 2.0\n")
    (root / "plain" / "config.toml").write_text("[scaled]\ntimse = 2.0\n")
    cache = str(root.parent / "cache")
    options = ("--devices", "cpu:1", "--cache-dir", cache)
    with ServedGateway(root, *options, PYTHONPATH=str(installed)) as gateway:
        gateway.until("/v2/models/scaled/ready", 200)
        yield gateway


def test_a_plugin_converts_a_model_and_serves_it(served: ServedGateway) -> None:
    found = served.infer("scaled", x=[[1.0, 2.0]])
    np.testing.assert_array_equal(found["y"], [-6.0, -12.0])


def test_a_plugin_answers_routes(served: ServedGateway) -> None:
    answer: httpx.Response = served.client.get("/v1/scales")
    assert answer.json() == {"scales": [2, 3]}
    assert "/v1/scales" in served.client.get("/openapi.json").json()["paths"]


def test_a_plugin_adds_a_command(installed: Path) -> None:
    def popgate(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "popgate", *arguments],
            env={**os.environ, "PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout

    assert re.search(r"^  scales +Print the scales\.$", popgate("--help"), re.M)
    assert popgate("scales") == "2 3\n"


#: A process in which no package of `plugins/` can be imported or found.
BARE = """
import importlib.metadata, sys

class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in PLUGINS:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Bare())
importlib.metadata.entry_points = lambda **_: importlib.metadata.EntryPoints()
from app.cli import main
sys.argv = ["popgate", *sys.argv[1:]]
main()
"""


def bare(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `popgate` without a plugin."""
    names = {path.name for path in ROOT.glob("plugins/*/src/*") if path.is_dir()}
    assert len(names) > 5
    return subprocess.run(
        [sys.executable, "-c", f"PLUGINS = {names!r}\n{BARE}", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_core_needs_no_plugin() -> None:
    """Without any, the command of the core is there: it serves."""
    done = bare("--help")
    assert done.returncode == 0, done.stderr
    shown = done.stdout.partition("Commands:\n")[2]
    commands = {line.split()[0] for line in shown.splitlines()}
    assert commands == {"serve"}
    done = bare("serve", "--help")
    assert done.returncode == 0, done.stderr
    assert "--model-repository" in done.stdout


def test_workers_need_their_plugin(tmp_path: Path) -> None:
    done = bare("serve", "-m", tmp_path, "--port", "0", "--workers", "2")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"popgate: error: {NO_PLUGIN}"]


def test_a_section_of_a_plugin_is_checked(served: ServedGateway) -> None:
    why = served.until("/v1/models/plain", 200).json()["reason"]
    assert "[scaled] unknown key 'timse' (did you mean times?)" in why


def test_a_section_without_its_plugin_is_unknown(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "m"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("[scaled]\ntimes = 2.0\n")
    with pytest.raises(ModelConfigError, match="unknown key 'scaled'"):
        read_options("m", folder, None, folder / "config.toml")


def _clear() -> None:
    _all_points.cache_clear()
    _points.cache_clear()


def install(folder: Path, group: str, point: str) -> None:
    """Make a plugin of an entry point in a folder that Python searches."""
    info = folder / "broken-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{point}\n")


COMMANDS_SHOWN = "from app.cli import main; import sys; sys.argv[1:] = ['-h']; main()"
ROUTES_MADE = (
    "from app.api.plugin_routes import plugin_routes; "
    "from app.settings import Settings; "
    "assert plugin_routes(Settings()); print('serve')"
)


@pytest.mark.parametrize(
    ("group", "made", "expected", "code"),
    [
        (COMMANDS, "'abc'", "a tuple of PluginCommand, got 'abc'", COMMANDS_SHOWN),
        (COMMANDS, "('abc',)", "a tuple of PluginCommand, got (", COMMANDS_SHOWN),
        (ROUTES, "dict", "a function that makes PluginRoutes, got ", ROUTES_MADE),
        (
            ROUTES,
            "lambda _: None",
            "a function that makes PluginRoutes, got None",
            ROUTES_MADE,
        ),
        (
            ROUTES,
            "lambda _: __import__('not_there')",
            "a function that makes PluginRoutes, got ModuleNotFoundError(",
            ROUTES_MADE,
        ),
    ],
)
def test_a_plugin_of_another_kind_is_named_and_left_out(
    group: str, made: str, expected: str, code: str, tmp_path: Path
) -> None:
    (tmp_path / "odd.py").write_text(f"FOUND = {made}\n")
    install(tmp_path, group, "odd = odd:FOUND")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "serve" in done.stdout
    assert f"plugin odd (odd:FOUND) is ignored: expected {expected}" in " ".join(
        done.stderr.split()
    )


@pytest.mark.parametrize("module", ["not_there", "ends_the_process"])
def test_a_plugin_that_cannot_be_imported_is_left_out(
    module: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "ends_the_process.py").write_text("import sys\nsys.exit(3)\n")
    group = MODEL_FORMATS
    install(tmp_path, group, f"{module} = {module}:FORMAT")
    monkeypatch.syspath_prepend(str(tmp_path))
    with caplog.at_level(logging.WARNING):
        _clear()  # another test may have filled it
        found = plugins.__wrapped__(group)
        _clear()
    assert module not in found
    assert f"plugin {module} ({module}:FORMAT) cannot be imported" in caplog.text
