"""`Listener`: what all connections of one listening socket share."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.http.connection.dispatch import Dispatch
from app.http.connection.exchange import CommonHead
from app.http.connection.turns import ReadBudget, Turns
from app.http.connection_limit import ConnectionLimit
from app.http.floods import Floods


@dataclass(frozen=True, slots=True)
class Listener:
    """The shared parts. For the event loop's thread."""

    dispatch: Dispatch
    floods: Floods
    limit: ConnectionLimit
    common: CommonHead = field(default_factory=CommonHead)
    turns: Turns = field(default_factory=Turns)
    budget: ReadBudget = field(default_factory=ReadBudget)
