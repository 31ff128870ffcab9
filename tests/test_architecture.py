"""The rules of the layout that a machine can hold: who imports whom.

    popef_io  <-  engine  <-  app  <-  popgate

Plugins stand over all; nothing of the core imports one (`PLUGINS` has their arrows).

Inside `engine` and `app` the same holds for rooms (sub-packages): `ROOMS` has the
arrows. Imports are read from the syntax tree, those for types only and those inside
functions included, so nothing is imported or run here. File sizes are an aim.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Set
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.statements import statements

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("popef_io", "engine", "app", "popgate")

#: What each of our packages may import of the others.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "popef_io": frozenset(),
    "engine": frozenset({"popef_io"}),
    "app": frozenset({"popef_io", "engine"}),
    # `popgate.client` is the name that programs have for the plugin's package.
    "popgate": frozenset(
        {"engine", "app", "popgate_client", "popgate_onnx"}
        | {"popgate_python_interface", "popgate_runtime"}
    ),
}
#: The folder of each package that a plugin installs.
PLUGIN_FOLDERS = {
    path.parent.name: path.parent for path in ROOT.glob("plugins/*/src/*/__init__.py")
}
#: What each of them may import of ours, beside itself.
PLUGINS: dict[str, frozenset[str]] = {
    "model_runtime": frozenset({"popef_io", "engine", "popef", "popgate_sessions"}),
    "popart": frozenset({"popef_io", "engine", "popdist", "popir", "popxl"}),
    "popdist": frozenset({"popart", "popir", "popxl"}),
    "popgate_popxl": frozenset({"engine", "app", "popgate_onnx", "popir"}),
    "popir": frozenset({"popef_io", "engine", "popgate_onnx", "popgate_sessions"}),
    "popxl": frozenset({"popef_io", "engine", "popart", "popdist", "popir"}),
    "popef": frozenset({"popef_io", "engine"}),
    "popgate_admin": frozenset({"popef_io", "engine", "app"}),
    "popgate_client": frozenset(),
    "popgate_ensembles": frozenset({"engine", "app"}),
    "popgate_images": frozenset({"popef_io", "engine", "app"}),
    "popgate_kserve": frozenset({"engine", "app"}),
    "popgate_mlflow": frozenset({"engine", "app", "popgate_kserve"}),
    "popgate_onnx": frozenset({"popef_io", "engine", "app"}),
    "popgate_pages": frozenset({"engine", "app"}),
    "popgate_python_files": frozenset(
        {"popef_io", "engine", "popgate_python_interface"}
    ),
    "popgate_python_interface": frozenset({"popef_io", "engine"}),
    "popgate_python_messages": frozenset({"popef_io", "engine"}),
    "popgate_python_models": frozenset({"engine", "app", "popgate_python_messages"}),
    "popgate_python_worker": frozenset(
        {"popef_io", "engine", "popgate_python_interface", "popgate_python_messages"}
    ),
    "popgate_ray": frozenset({"engine", "app"}),
    "popgate_remote": frozenset({"engine", "app"}),
    "popgate_row_proof": frozenset({"engine", "popgate_onnx"}),
    "popgate_runtime": frozenset(
        {"popef_io", "engine", "app", "popgate_client", "popgate_sessions"}
        | {"popgate_tools"}
    ),
    "popgate_workers": frozenset({"engine", "app"}),
    "popgate_tools": frozenset(
        {"popef_io", "engine", "app", "popgate_client", "popgate_onnx"}
    ),
    "popgate_session_messages": frozenset({"engine"}),
    "popgate_session_worker": frozenset(
        {"popef_io", "engine", "popgate_session_messages"}
    ),
    "popgate_sessions": frozenset({"popef_io", "engine", "popgate_session_messages"}),
    "popgate_stateful": frozenset({"popef_io", "engine", "app"}),
    "popgate_telemetry": frozenset({"engine", "app"}),
    "popgate_text": frozenset({"popef_io", "engine", "app"}),
    "popgate_triton": frozenset({"engine", "app"}),
    "triton_python_backend_utils": frozenset(
        {"popef_io", "engine", "popgate_python_interface"}
    ),
}
WEB_AND_EVENT_LOOPS = frozenset(
    {"fastapi", "starlette", "uvicorn", "uvloop", "httptools", "http", "httpx"}
    | {"aiohttp", "pydantic", "pydantic_settings", "asyncio", "anyio", "trio"}
    | {"gevent", "socketserver"}
)
#: Roots beside the packages' own: those who only run models need not import onnx.
OTHER_ROOTS = frozenset(
    {
        "popgate_onnx.compiler",
        "engine.programs",
        "engine.programs.onnx_session",
        "popir.session",
        "popir.caching",
        "popir.instances",
        "popir.instances.launcher",
        "popgate_client.values",
        "popgate_runtime.runner",
    }
)
#: Names of others, without logic of ours: programs test them, not files.
FACES = frozenset(
    {"model_runtime", "popart", "popdist", "popef", "popxl"}
    | {"triton_python_backend_utils"}
)
#: Packages that hand no names on at their root: plugins import their modules.
WITHOUT_NAMES = frozenset(
    {"app", "popgate_kserve", "popgate_python_messages", "popgate_tools"}
)
#: Modules of the core that hand on the names of a plugin.
FACES_OF_PLUGINS = {"popgate/__init__.py", "popgate/client.py"}
#: Plugins that are part of the engine: they import its modules.
OF_THE_ENGINE = frozenset(
    {"popgate_onnx", "popgate_row_proof", "popgate_sessions"}
    | {"popgate_session_messages", "popgate_session_worker"}
    | {"popgate_python_files", "popgate_python_interface"}
    | {"popgate_python_messages", "popgate_python_worker"}
)
#: What each room may import of its package beside itself. `ground` are the modules at
#: the package's root that every room may know; those of `TOP` stand over the rooms.
ROOMS: dict[str, dict[str, frozenset[str]]] = {
    "engine": {
        "transport": frozenset(),
        "programs": frozenset(),
        "model": frozenset({"programs", "transport"}),
        "devices": frozenset({"transport"}),
        "runner": frozenset({"model", "devices", "programs", "transport"}),
        "worker": frozenset({"model", "programs", "transport"}),
    },
    "app": {
        "observe": frozenset(),
        "config": frozenset({"observe"}),
        "codec": frozenset({"config", "observe"}),
        "serving": frozenset({"codec", "config", "observe"}),
        "http": frozenset({"serving", "codec", "config", "observe"}),
        "repository": frozenset({"serving", "codec", "config", "observe"}),
        "api": frozenset(
            {"http", "repository", "serving", "codec", "config", "observe"}
        ),
        "cli": frozenset(
            {"api", "http", "repository", "serving", "codec", "config", "observe"}
        ),
    },
}
GROUND: dict[str, frozenset[str]] = {
    "engine": frozenset(
        {"arrays", "config", "descriptors", "errors", "faults", "fork_guard", "logs"}
        | {"owner", "run_failures", "telemetry", "tensor", "thread_priority"}
    ),
    "app": frozenset(
        {
            "about",
            "background",
            "errors",
            "give_way",
            "limits",
            "plugins",
            "propagators",
            "regions",
        }
        | {"settings", "sizes", "spec", "stage"}
    ),
}
#: Modules over the rooms, and which rooms may import them.
TOP: dict[str, dict[str, frozenset[str]]] = {
    "engine": {"public": frozenset(), "compiler": frozenset()},
    "app": {
        "pools": frozenset(),
        "reloading": frozenset(),
        "gateway": frozenset({"api", "cli"}),
        "assembly": frozenset({"cli"}),
        "other_processes": frozenset(),
        "server_process": frozenset(),
        "main": frozenset({"cli"}),
        "run": frozenset({"cli"}),
        "service_manager": frozenset(),
    },
}
#: The device process: it is started, never imported.
DEVICE_ROOMS = ("engine.worker", "popgate_python_worker", "popgate_session_worker")
MOST_FLOORS = 9
MOST_FILES = 25
#: An aim, no reason to cut a noun in two: larger files are warned of.
LARGEST_FILE = 500


#: The longest chain of module imports in each package of the core, those for types and
#: inside functions included. These numbers only get smaller.
LONGEST_CHAIN = {"popef_io": 11, "engine": 20, "app": 14}
#: A class has at most so many lines and methods.
LARGEST_CLASS = 300
MOST_METHODS = 25
#: Classes that have more. The list only gets shorter. Settings are a table, and
#: operators of a graph have a method each.
LARGE_CLASSES = frozenset(
    {
        "app.settings.Settings",
        "popart.operators.OpView",
        "popart.views.GraphView",
        "popef.metadata.Metadata",
        "popgate_client.async_client.AsyncClient",
        "popgate_client.client.Client",
        "popgate_sessions.session.Session",
        "popir.autodiff._Differentiation",
        "popir.builder.Builder",
        "popir.lowering.lower.Lowering",
        "popxl.graph.Graph",
        "popxl.session.Session",
        "popxl.tensor.Tensor",
    }
)


class Import(NamedTuple):
    """One imported module, as a dotted name, and where it is said."""

    module: str
    names: tuple[str, ...]
    line: int


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] == "plugins":  # plugins/NAME/src/PACKAGE
        parts = parts[3:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _imports(path: Path) -> tuple[Import, ...]:
    found = []
    here = _module_name(path).split(".")
    package = here if path.name == "__init__.py" else here[:-1]
    for node in statements(_tree(path)):
        if isinstance(node, ast.Import):
            found += [Import(a.name, (), node.lineno) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = tuple(alias.name for alias in node.names)
            found.append(Import(module, names, node.lineno))
    return tuple(found)


def _files(*packages: str) -> list[Path]:
    return sorted(
        path
        for package in packages
        for path in PLUGIN_FOLDERS.get(package, ROOT / package).rglob("*.py")
    )


def _broken(path: Path, imported: Import) -> str:
    return f"{path.relative_to(ROOT)}:{imported.line} imports {imported.module}"


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    allowed = MAY_IMPORT[package] | {package}
    assert _imports_but(package, allowed) == []


def _imports_but(package: str, allowed: Set[str]) -> list[str]:
    """The imports of other packages of ours that are not allowed."""
    ours = {*PACKAGES, *PLUGIN_FOLDERS, "tests", "bench", "examples"}
    return [
        _broken(path, imported)
        for path in _files(package)
        for imported in _imports(path)
        if (top := imported.module.split(".")[0]) in ours and top not in allowed
    ]


def test_each_plugin_says_what_it_imports() -> None:
    assert set(PLUGINS) == set(PLUGIN_FOLDERS)


@pytest.mark.parametrize("package", sorted(PLUGIN_FOLDERS))
def test_plugins_import_one_way(package: str) -> None:
    assert _imports_but(package, PLUGINS[package] | {package}) == []


@pytest.mark.parametrize("package", ["engine", "app", *sorted(PLUGIN_FOLDERS)])
def test_other_packages_are_imported_by_their_root(package: str) -> None:
    assert [
        _broken(path, imported)
        for path in _files(package)
        for imported in _imports(path)
        if "." in imported.module
        and imported.module not in OTHER_ROOTS
        and (top := imported.module.split(".")[0]) in {*PACKAGES, *PLUGIN_FOLDERS}
        and top != package
        and not (package in PLUGIN_FOLDERS and top in WITHOUT_NAMES)
        and not {package, top} <= FACES
        and not (package in OF_THE_ENGINE and top == "engine")
    ] == []


@cache
def _edges() -> dict[str, frozenset[str]]:
    """Module to the modules of ours that it names in any import."""
    files = {_module_name(path): path for path in _files(*PACKAGES, *PLUGIN_FOLDERS)}
    edges: dict[str, frozenset[str]] = {}
    for name, path in files.items():
        targets = set()
        for imported in _imports(path):
            inner = {f"{imported.module}.{each}" for each in imported.names} & set(
                files
            )
            # `from package import module` needs the module; the package only if
            # something else of it is named too.
            targets |= inner
            if len(inner) < max(1, len(imported.names)):
                targets |= {imported.module} & set(files)
        edges[name] = frozenset(targets - {name})
    return edges


def _circle(edges: Mapping[str, Iterable[str]]) -> str:
    """One circle among the nodes, written out; empty if there is none."""
    done: set[str] = set()

    def visit(node: str, trail: tuple[str, ...]) -> str:
        if node in trail:
            return " -> ".join([*trail[trail.index(node) :], node])
        found = ""
        if node not in done:
            for target in sorted(edges[node]):
                found = found or visit(target, (*trail, node))
            done.add(node)
        return found

    for node in sorted(edges):
        if found := visit(node, ()):
            return found
    assert done == set(edges)
    return ""


def test_modules_do_not_import_in_a_circle() -> None:
    assert _circle(_edges()) == ""


def _longest_chain(edges: Mapping[str, Iterable[str]], package: str) -> list[str]:
    """Return the longest chain of imports between modules of a package, which has no
    circle."""
    found: dict[str, list[str]] = {}

    def below(name: str) -> list[str]:
        if name not in found:
            inside = (each for each in edges[name] if each.startswith(f"{package}."))
            found[name] = [name, *max(map(below, inside), key=len, default=[])]
        return found[name]

    inside = (name for name in edges if name.startswith(f"{package}."))
    return max(map(below, inside), key=len)


@pytest.mark.parametrize("package", sorted(LONGEST_CHAIN))
def test_chains_of_imports_only_get_shorter(package: str) -> None:
    chain = _longest_chain(_edges(), package)
    assert len(chain) <= LONGEST_CHAIN[package], " > ".join(chain)


def test_the_search_for_chains_finds_one() -> None:
    edges = {"p.a": ["p.b", "p.c"], "p.b": ["p.c", "q.d"], "p.c": [], "q.d": ["p.a"]}
    assert _longest_chain(edges, "p") == ["p.a", "p.b", "p.c"]


def test_the_list_of_large_classes_only_gets_shorter() -> None:
    large = set()
    for path in _files(*PACKAGES, *PLUGIN_FOLDERS):
        for node in statements(_tree(path)):
            if isinstance(node, ast.ClassDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                kinds = ast.FunctionDef | ast.AsyncFunctionDef
                methods = sum(isinstance(each, kinds) for each in node.body)
                if lines > LARGEST_CLASS or methods > MOST_METHODS:
                    large.add(f"{_module_name(path)}.{node.name}")
    assert large - LARGE_CLASSES == set(), "too many lines or methods"
    assert LARGE_CLASSES - large == set(), "take these off the list"


#: Packages whose class names are API. Users know them beside those of other packages.
NAMED_FOR_USERS = FACES | {"popgate", "popgate_client", "popgate_python_interface"}


def test_a_class_name_stands_for_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in _files(*(set(PACKAGES) | set(PLUGIN_FOLDERS)) - NAMED_FOR_USERS):
        if _module_name(path) == "popgate_runtime.runner":
            continue  # its names are those of `popgate`
        for node in _tree(path).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(_module_name(path))
    several = {name: found for name, found in places.items() if len(found) > 1}
    assert several == {}


#: The attributes of other modules' objects that a file sets. Most are records whose
#: fields one owner fills: a request while its body is read, counters, the turn of a
#: channel. The list only gets shorter.
SET_FROM_OUTSIDE = {
    "app/codec/document.py": "id read_from",
    "app/codec/files/form.py": "id",
    "app/codec/model.py": "classes encoding outputs",
    "app/codec/oip_binary.py": "binary",
    "app/codec/request_options.py": (
        "binary binary_by_name classes extents nan null_is_nan outputs parameters"
        " priority timeout"
    ),
    "app/http/connection/cycle.py": "keep_alive",
    "app/http/connection/dispatch.py": "arrived is_large key",
    "app/http/connection/protocol.py": "idle_since keep_alive key",
    "app/http/front.py": (
        "arrived body http_version is_done is_large key method peer scheme url_path"
    ),
    "app/http/server.py": "logger",
    "app/serving/call.py": "held priority",
    "engine/runner/admission.py": "seen since",
    "engine/runner/channel_rings.py": "slot submitted_ns",
    "engine/runner/in_flight.py": "compute_ns queue_ns rows",
    "engine/runner/replica_channel.py": (
        "batch_length batch_rows began_ns compute_ns predicted_ns queue_ns seen since"
    ),
    "engine/worker/device_service.py": "gone",
    "engine/worker/fair_queue.py": "last_turn share turn used",
    "engine/worker/ragged.py": "pending",
    "engine/worker/regrouping.py": "pending rows",
    "engine/worker/replica.py": "pending",
}
#: The same names on objects that are not ours: protocol buffers of ONNX,
#: application state of Starlette, arguments of an exception, parameters of click.
NOT_OURS = {
    "app/cli/__init__.py": "params",
    "app/main.py": "front paths",
    "app/observe/log_writer.py": "args",
    "plugins/onnx/src/popgate_onnx/compiler/loading.py": "name",
    "plugins/onnx/src/popgate_onnx/compiler/rows/exposure.py": "name",
    "plugins/onnx/src/popgate_onnx/compiler/rows/row_trace.py": "name",
    "plugins/onnx/src/popgate_onnx/compiler/weights.py": "data_type key value",
    "engine/errors.py": "args",
}


def _targets(tree: ast.AST) -> list[ast.Attribute]:
    """Return the attributes that a tree assigns to, without augmented assignments."""
    nodes: list[ast.expr] = []
    for each in statements(tree):
        if isinstance(each, ast.Assign):
            nodes += each.targets
        elif isinstance(each, ast.AnnAssign):
            nodes.append(each.target)
    flat: list[ast.expr] = []
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Tuple | ast.List):
            nodes += node.elts
        else:
            flat.append(node)
    return [node for node in flat if isinstance(node, ast.Attribute)]


def _is_own(target: ast.Attribute) -> bool:
    return isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")


def _declared(tree: ast.AST) -> set[str]:
    """Return the attributes that the classes of a module declare or set themselves."""
    names = {target.attr for target in _targets(tree) if _is_own(target)}
    for node in statements(tree):
        if isinstance(node, ast.ClassDef):
            fields = (each for each in node.body if isinstance(each, ast.AnnAssign))
            names |= {f.target.id for f in fields if isinstance(f.target, ast.Name)}
    return names


def _set_from_outside(trees: Mapping[str, ast.AST]) -> dict[str, set[str]]:
    """Return by file the attributes that it sets on objects of other modules."""
    declared = {name: _declared(tree) for name, tree in trees.items()}
    every = set().union(*declared.values())
    found = {
        name: {target.attr for target in _targets(tree) if not _is_own(target)}
        for name, tree in trees.items()
    }
    outside = {name: (a & every) - declared[name] for name, a in found.items()}
    return {name: attributes for name, attributes in outside.items() if attributes}


def test_objects_are_whole_when_made() -> None:
    """No other module than the list's sets an attribute of an object whose class is in
    another module.
    """
    trees = {
        path.relative_to(ROOT).as_posix(): _tree(path) for path in _files(*PACKAGES)
    }
    found = _set_from_outside(trees)
    known = {
        name: {*SET_FROM_OUTSIDE.get(name, "").split(), *NOT_OURS.get(name, "").split()}
        for name in (*SET_FROM_OUTSIDE, *NOT_OURS)
    }
    more = {name: found[name] - known.get(name, set()) for name in found}
    assert {name: more[name] for name in more if more[name]} == {}, "set from outside"
    fewer = {
        name: {*names.split()} - found.get(name, set())
        for name, names in SET_FROM_OUTSIDE.items()
    }
    assert {name: fewer[name] for name in fewer if fewer[name]} == {}, "take them off"


def test_the_search_for_attributes_set_from_outside_finds_one() -> None:
    made = "class A:\n    def __init__(self):\n        self.a = self.b = 0\n"
    uses = "def f(x, y):\n    x.a, y.c = 1, 2\n    x.b += 1\n"
    trees = {"made.py": ast.parse(made), "uses.py": ast.parse(uses)}
    assert _set_from_outside(trees) == {"uses.py": {"a"}}


def test_the_search_for_circles_finds_one() -> None:
    assert _circle({"a": ["b"], "b": ["c"], "c": ["b"]}) == "b -> c -> b"


def _children(package: str) -> dict[str, frozenset[str]]:
    """The modules and rooms right inside a package, and what each imports of them."""

    def child(module: str) -> str:
        return module.removeprefix(f"{package}.").split(".")[0]

    inside = [name for name in _edges() if name.startswith(f"{package}.")]
    needs: dict[str, set[str]] = {child(name): set() for name in inside}
    for name in inside:
        targets = {t for t in _edges()[name] if t.startswith(f"{package}.")}
        needs[child(name)] |= {child(t) for t in targets} - {child(name)}
    return {name: frozenset(targets) for name, targets in needs.items()}


def _packages(*roots: str) -> list[str]:
    names = {_module_name(path.parent / "__init__.py") for path in _files(*roots)}
    return sorted(names)


@pytest.mark.parametrize("package", _packages("engine", "app", *PLUGIN_FOLDERS))
def test_floors_of_a_package(package: str) -> None:
    """Arrows inside a package run one way, over few floors."""
    needs = _children(package)
    assert _circle(needs) == ""
    floors: dict[str, int] = {}

    def floor(name: str) -> int:
        if name not in floors:
            floors[name] = 1 + max(map(floor, needs[name]), default=0)
        return floors[name]

    highest = max(map(floor, needs), default=0)
    assert highest <= MOST_FLOORS, sorted(floors.items(), key=lambda item: item[1])


@pytest.mark.parametrize(
    "package", _packages(*PACKAGES, *PLUGIN_FOLDERS, "bench", "native", "examples")
)
def test_few_files_stand_side_by_side(package: str) -> None:
    top, *rest = package.split(".")
    folder = PLUGIN_FOLDERS.get(top, ROOT / top).joinpath(*rest)
    files = list(folder.glob("*.py"))
    assert files
    assert len(files) <= MOST_FILES


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_as_the_layout_says(package: str) -> None:
    children = _children(package)
    rooms, top = ROOMS[package], TOP[package]
    assert set(children) == {*rooms, *GROUND[package], *top}
    broken = []
    for name, needed in children.items():
        if name in top:
            continue  # over all rooms
        allowed = GROUND[package]
        if name in rooms:
            allowed |= rooms[name] | {over for over in top if name in top[over]}
        elif name == "settings":  # put together from what the rooms declare
            allowed |= {"config", "observe"}
        broken += [f"{package}.{name} -> {each}" for each in needed - allowed]
    assert broken == []


def test_popxl_has_no_logic_of_its_own_below_it() -> None:
    """It is names, checks and handles: what runs is `popir`'s."""
    below = {"engine", "popef_io", "onnx", "onnxruntime"}
    assert [
        _broken(path, imported)
        for path in _files("popxl")
        for imported in _imports(path)
        if imported.module.split(".")[0] in below
    ] == []


def test_the_device_process_is_started_never_imported() -> None:
    assert [
        f"{name} imports {target}"
        for name, targets in _edges().items()
        for target in targets
        if target.startswith(DEVICE_ROOMS) and not name.startswith(DEVICE_ROOMS)
    ] == []


@pytest.mark.parametrize("package", sorted(ROOMS))
def test_rooms_say_what_they_are(package: str) -> None:
    """What lives there, in which process it runs, and what it may import."""
    for room in ROOMS[package]:
        text = ast.get_docstring(_tree(ROOT / package / room / "__init__.py")) or ""
        words = " ".join(text.split())
        assert "Runs in " in words, room
        assert "May import " in words, room


def _covered() -> list[tuple[str, str]]:
    """Test and product file, as the heads of tests say: `Covers: a.py, b.py.`"""
    said = []
    tests = *ROOT.glob("tests/**/test_*.py"), *ROOT.glob("plugins/**/test_*.py")
    for test in sorted(tests):
        if "Covers: " not in test.read_text(encoding="utf-8"):
            continue  # parsing those takes seconds
        head = ast.get_docstring(_tree(test)) or ""
        if found := re.search(r"^Covers: (.+?)\.$", head, re.DOTALL | re.MULTILINE):
            name = test.relative_to(ROOT).as_posix()
            said += [(name, each) for each in re.split(r",\s+", found[1])]
    return said


def test_every_file_has_its_test() -> None:
    """Under its own name, or named in the head of the test that covers it."""
    said = _covered()
    assert [(test, file) for test, file in said if not (ROOT / file).is_file()] == []
    files = [file for _, file in said]
    assert sorted(files) == sorted(set(files)), "one test for each"
    without = []
    ours = "popef_io", "engine", "app", "popgate", *(PLUGIN_FOLDERS.keys() - FACES)
    for path in _files(*ours):
        file = path.relative_to(ROOT)
        inside = file.parent
        folder = ROOT / "tests"
        if file.parts[0] == "plugins":
            inside = Path(*inside.parts[4:])  # plugins/NAME/src/PACKAGE
            folder = ROOT.joinpath(*file.parts[:2], "tests")
        name = f"test_{file.name}"
        tests = [folder / inside / name]
        if file.parts[0] == "plugins":  # a plugin may have several packages
            tests.append(folder / file.parts[3] / inside / name)
        is_covered = any(test.exists() for test in tests) or file.as_posix() in files
        if not file.name.startswith("__") and not is_covered:
            without.append(str(file))
    assert without == []


def test_engine_knows_no_web_framework_and_no_event_loop() -> None:
    assert [
        _broken(path, imported)
        for path in _files("popef_io", "engine", "popir")
        for imported in _imports(path)
        if imported.module.split(".")[0] in WEB_AND_EVENT_LOOPS
    ] == []


def test_clients_know_nothing_else_of_ours() -> None:
    """They run in other people's programs."""
    allowed = {"numpy", "orjson", "httpx", "httptools", "msgpack"}
    allowed |= sys.stdlib_module_names
    assert [
        _broken(path, imported)
        for path in _files("popgate_client")
        for imported in _imports(path)
        if imported.module.split(".")[0] not in {*allowed, "popgate_client"}
    ] == []


def test_few_modules_hand_names_of_plugins_on() -> None:
    users = {
        path.relative_to(ROOT).as_posix()
        for path in _files("popgate")
        for imported in _imports(path)
        if imported.module.split(".")[0] in PLUGIN_FOLDERS
    }
    assert users == FACES_OF_PLUGINS


def test_the_core_names_no_plugin() -> None:
    """Not in a string or a comment either."""
    names = [name for name in PLUGIN_FOLDERS if name.startswith("popgate_")]
    assert names
    named = re.compile(rf"\b({'|'.join(names)})\b|\bplugins/[a-z]")
    found = {
        path.relative_to(ROOT).as_posix()
        for path in _files(*PACKAGES)
        if named.search(path.read_text(encoding="utf-8"))
    }
    assert found == FACES_OF_PLUGINS


def test_container_needs_little() -> None:
    allowed = sys.stdlib_module_names | {"msgpack", "numpy", "popef_io"}
    assert [
        _broken(path, imported)
        for path in _files("popef_io")
        for imported in _imports(path)
        if imported.module.split(".")[0] not in allowed
    ] == []


def test_one_file_knows_the_bytes_of_the_container() -> None:
    users = {
        path.relative_to(ROOT).as_posix()
        for path in _files("popef_io")
        for imported in _imports(path)
        if imported.module == "struct"
    }
    assert users <= {"popef_io/layout.py"}


def test_no_code_comes_from_data() -> None:
    forbidden_modules = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    forbidden_calls = {"eval", "exec"}
    broken = []
    for path in _files(*PACKAGES, *PLUGIN_FOLDERS):
        broken += [
            _broken(path, imported)
            for imported in _imports(path)
            if imported.module.split(".")[0] in forbidden_modules
        ]
        broken += [
            f"{path.relative_to(ROOT)}:{node.lineno} calls {node.func.id}"
            for node in ast.walk(_tree(path))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in forbidden_calls
        ]
    assert broken == []


def test_no_fixture_belongs_to_a_package() -> None:
    """Our folders of tests are no packages, so pytest would keep it until the end of
    the run: one such fixture made all later servers start from nothing.
    """
    mark = 'scope="' + 'package"'
    paths = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("plugins/*/tests/**/*.py")]
    assert paths
    assert [path for path in paths if mark in path.read_text()] == []


def test_large_files_are_named() -> None:
    files = _files(*PACKAGES, *PLUGIN_FOLDERS, "bench", "examples")
    assert files
    for path in files:
        lines = len(path.read_text().splitlines())
        if lines > LARGEST_FILE:
            name = path.relative_to(ROOT)
            warnings.warn(f"{name} has {lines} lines: two nouns?", stacklevel=1)


def test_the_reader_of_imports_sees_what_it_should() -> None:
    seen = _imports(Path(__file__))
    modules = {imported.module for imported in seen}
    assert {"ast", "pathlib", "collections.abc"} <= modules
