"""The client under the names of `popgate`.

Covers: popgate/client.py, plugins/client/make_blocking.py.
"""

from __future__ import annotations

import popgate
import popgate.client
import popgate_client
from plugins.client import make_blocking


def test_all_names_of_the_package_are_there() -> None:
    for name in popgate.__all__:
        assert getattr(popgate, name) is not None


def test_the_client_has_its_name_here() -> None:
    assert popgate.client.__all__ == popgate_client.__all__
    for name in popgate_client.__all__:
        assert getattr(popgate.client, name) is getattr(popgate_client, name)


def test_the_blocking_client_is_made_from_that_for_event_loops() -> None:
    made = make_blocking.MADE.read_text()
    hint = "run python plugins/client/make_blocking.py"
    assert made == make_blocking.blocking(make_blocking.SOURCE.read_text()), hint
    assert "await" not in made
