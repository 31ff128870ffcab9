"""A pytest plugin: where no plugin of PopGate is installed, leave out what needs one.

`make test-core` runs the others. The list only gets shorter.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: Files and tests that need the client, ensembles, Python models, or what the commands
#: and routes of plugins add.
NEED_PLUGINS = (
    "tests/app/cli/test_main.py::test_help_is_as_wide_as_the_terminal",
    "tests/app/cli/test_main.py::test_help_names_values_and_no_types",
    "tests/app/cli/test_main.py::test_help_of_serve_tells_the_real_defaults",
    "tests/app/cli/test_main.py::test_help_shows_commands_of_plugins",
    "tests/app/cli/test_main.py::test_shells_complete_commands_and_options[popgate dr",
    # A served .onnx file is compiled.
    "tests/app/config/test_ragged_config.py::test_a_model_is_served",
    "tests/app/test_plugins.py::test_a_plugin",
    "tests/app/test_plugins.py::test_a_section_of_a_plugin_is_checked",
    "tests/popgate/test_own.py::test_the_command_uses_its_own_packages",
    "tests/app/api/test_asyncio_client.py::test_shared_memory",
    "tests/app/api/test_routes.py::test_shared_memory",
    "tests/app/api/test_stock_client.py::TestSharedMemory",
    "tests/app/cli/test_terminal.py",
    "tests/app/codec/files/test_posted_files.py",
    "tests/app/http/test_management_socket.py",
    "tests/app/serving/test_keys_apart.py::test_shared_memory",
    "tests/app/http/test_access.py::test_keys_over_http",
    "tests/app/repository/test_on_demand.py::test_an_ensemble_leaves_and_comes",
    # Sequences and steps.
    "tests/app/http/test_streaming.py::test_state_goes_from_step_to_step",
    # Python models.
    "tests/app/api/test_server_metrics.py::test_every_process_has_its_memory_and_its",
    "tests/app/cli/test_serve.py::test_one_python_file_is_a_model",
    "tests/app/http/test_outcomes.py",
    "tests/app/http/test_request_log.py",
    "tests/app/repository/test_on_demand.py::test_a_model_with_an_open_sequence_stays",
    "tests/app/repository/test_other_interpreter.py",
    "tests/app/repository/test_python_models.py",
    "tests/app/serving/calls/test_calls_plugin.py",
    "tests/app/serving/test_keys.py::test_keys_come_and_go_while_models_load",
    # What was answered, as /v1/requests shows it.
    "tests/app/serving/test_keys.py::test_a_busy_device_is_shared_by_weight",
    "tests/app/serving/test_keys_apart.py",
    "tests/app/serving/test_streams_and_swaps.py",
    "tests/deploy/test_saturation.py",
    "tests/docs/test_python_models.py",
    "tests/engine/runner/test_requeue.py",
    "tests/examples/test_python.py",
    # Several workers, and routes of plugins below a base path.
    "tests/app/http/test_answers.py::test_what_a_worker_has_counted_outlives_it",
    "tests/app/http/test_base_path.py",
    "tests/app/test_run.py::test_what_its_starter_blocked",
    "tests/app/repository/test_load_overrides.py",
    "tests/app/test_pairs.py",
    "tests/app/test_pairs_at_work.py",
)
#: Fixtures that start a server with the profile of a plugin.
NEED_PLUGIN_FIXTURES = {"triton"}
#: Parameters of tests that start several workers.
WORKERS = (2, "2", ("--workers", "2"))
CORE_ALONE = not entry_points(group="popgate.commands")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Pass over files whose imports need a plugin."""
    if CORE_ALONE and collection_path.is_relative_to(ROOT):
        name = collection_path.relative_to(ROOT).as_posix()
        return name in NEED_PLUGINS or None
    return None


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Deselect single tests that need a plugin."""
    if not CORE_ALONE:
        return
    left = [
        item
        for item in items
        if item.nodeid.startswith(NEED_PLUGINS)
        or NEED_PLUGIN_FIXTURES & set(getattr(item, "fixturenames", ()))
        or _starts_workers(item)
    ]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


def _starts_workers(item: pytest.Item) -> bool:
    parameters = getattr(item, "callspec", None)
    if parameters is None or '"--workers"' not in item.path.read_text():
        return False
    return any(value in WORKERS for value in parameters.params.values())
