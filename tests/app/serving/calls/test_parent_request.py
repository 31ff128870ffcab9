"""For whom a request is made, through whatever is between."""

from __future__ import annotations

from functools import partial
from typing import Any

from app.observe.journal import NestedCall
from app.serving.calls.parent_request import ClientRequest, parent_of
from app.serving.pending import Pending


class Client:
    def client_request(self) -> ClientRequest:
        return "id", "", ""

    def add_nested_call(self, call: NestedCall) -> None:
        raise NotImplementedError

    def done(self, pending: Any) -> None:
        """What its request ends with."""


class Between:
    def passed_on(self, then: Any, pending: Any) -> None:
        """As schedulers do."""


def nobody(pending: Any) -> None:
    """A callback of nobody's."""


def test_who_waits() -> None:
    client = Client()
    assert parent_of(client.done) is client
    step = Pending({}, None, client.done, 0)
    assert parent_of(partial(Between().passed_on, step)) is client
    assert parent_of(partial(Between().passed_on, client.done)) is client
    outer = Pending({}, None, partial(Between().passed_on, step), 0)
    assert parent_of(partial(Between().passed_on, outer)) is client
    step.resolve()  # it has ended: nobody waits any more
    assert parent_of(partial(Between().passed_on, outer)) is None
    assert parent_of(nobody) is None
    assert parent_of(None) is None
