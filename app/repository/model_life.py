"""The life of a model version: for each state and event, the action and the next state.

`LIFE` holds all of it. The repository, the load and unload calls and loading on demand
report events (`VersionRecord.on`), and follow the table. docs/reference/repository.md
draws it.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple, TypeAlias

#: The state's name in the protocol.
StateWord: TypeAlias = Literal["READY", "LOADING", "UNLOADING", "UNAVAILABLE"]


class State(Enum):
    """The states of a model version, the best for requests first."""

    READY = "ready"
    ON_DEMAND = "on demand"  # takes requests, but is not in memory now
    LOADING = "loading"  # or warming up
    DRAINING = "draining"  # answers its last requests
    FAILED = "failed"
    UNLOADED = "unloaded"

    @property
    def word(self) -> StateWord:
        """Return the protocol's word for it."""
        return _WORDS[self]


_WORDS: dict[State, StateWord] = {
    State.READY: "READY",
    State.ON_DEMAND: "READY",
    State.LOADING: "LOADING",
    State.DRAINING: "UNLOADING",
    State.FAILED: "UNAVAILABLE",
    State.UNLOADED: "UNAVAILABLE",
}


class Event(Enum):
    """Events of a version."""

    LOAD = "a load request, or a change that polling finds"
    OFFER = "the same with `--lazy`, if the model is not in memory"
    REQUEST = "a request to a model that is not in memory"
    LOADED = "the model is loaded and has warmed up"
    FAIL = "loading or warming up failed"
    CUT_OFF = "the device was lost, or memory was short, during the load"
    NO_MEMORY = "the server starts and has no memory left for the model"
    EVICT = "the model is idle, and another model needs its memory"
    FAULT = "the model caused faults while it ran"
    UNLOAD = "an unload request, or the files are gone"
    DRAINED = "the last request is answered"


class Action(Enum):
    """Actions after an event."""

    LOAD = "load it"
    OFFER = "the next request loads it"
    SERVE = "serve it; drain and close the version that it replaces"
    KEEP = "keep serving the former version, and report the reason"
    RETRY = "a request may load it again after 10 s"
    AGAIN = "the next request tries again"
    EVICT = "drain and close it; the next request loads it"
    STOP = "drain and close it; a load request loads it"
    CLOSE = "drain and close it"
    FORGET = "remove it"


class Transition(NamedTuple):
    """The next state of a version, and the action."""

    state: State
    action: Action


_LOAD = Transition(State.LOADING, Action.LOAD)
_OFFER = Transition(State.ON_DEMAND, Action.OFFER)
_SERVE = Transition(State.READY, Action.SERVE)
_KEEP = Transition(State.READY, Action.KEEP)
_RETRY = Transition(State.FAILED, Action.RETRY)
_AGAIN = Transition(State.FAILED, Action.AGAIN)
_FORGET = Transition(State.UNLOADED, Action.FORGET)

#: Combinations that are missing here are bugs. Loads of one version wait for each
#: other. After an interrupted load the version stays loading, or draining.
LIFE: dict[State, dict[Event, Transition]] = {
    State.UNLOADED: {Event.LOAD: _LOAD, Event.OFFER: _OFFER, Event.UNLOAD: _FORGET},
    State.ON_DEMAND: {
        Event.LOAD: _LOAD,
        Event.OFFER: _OFFER,
        # The version keeps taking requests, which wait.
        Event.REQUEST: Transition(State.ON_DEMAND, Action.LOAD),
        Event.LOADED: _SERVE,
        Event.FAIL: _RETRY,
        Event.CUT_OFF: _AGAIN,
        Event.UNLOAD: _FORGET,
    },
    State.LOADING: {
        Event.LOAD: _LOAD,
        Event.OFFER: _OFFER,
        Event.REQUEST: _LOAD,
        Event.LOADED: _SERVE,
        Event.FAIL: _RETRY,
        Event.CUT_OFF: _AGAIN,
        Event.NO_MEMORY: _OFFER,
        Event.UNLOAD: _FORGET,
    },
    State.READY: {
        # The former version serves until it is replaced.
        Event.LOAD: Transition(State.READY, Action.LOAD),
        Event.LOADED: _SERVE,
        Event.FAIL: _KEEP,
        Event.CUT_OFF: _KEEP,
        Event.NO_MEMORY: _KEEP,
        Event.EVICT: Transition(State.ON_DEMAND, Action.EVICT),
        Event.FAULT: Transition(State.FAILED, Action.STOP),
        Event.UNLOAD: Transition(State.DRAINING, Action.CLOSE),
    },
    State.DRAINING: {
        Event.LOAD: _LOAD,
        Event.OFFER: _OFFER,
        Event.UNLOAD: _FORGET,
        Event.DRAINED: _FORGET,
    },
    State.FAILED: {
        Event.LOAD: _LOAD,
        Event.OFFER: _OFFER,
        # The version is shown as failed until the load has ended.
        Event.REQUEST: Transition(State.FAILED, Action.LOAD),
        Event.LOADED: _SERVE,
        Event.FAIL: _RETRY,
        Event.CUT_OFF: _AGAIN,
        Event.NO_MEMORY: _OFFER,
        Event.UNLOAD: _FORGET,
    },
}
