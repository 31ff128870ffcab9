from __future__ import annotations

from collections.abc import Mapping

from engine.programs.dataflow import Dataflow
from engine.programs.executable import (
    Copy,
    Executable,
    Execute,
    Node,
    ProgramCall,
    Repeat,
    Steps,
    StreamIn,
    StreamOut,
    Switch,
)


def analyse(programs: Mapping[int, Node], load: tuple[int, ...] = (0,)) -> Dataflow:
    return Dataflow.of(Executable(programs=programs), load)


def run(inputs: str, outputs: str) -> Execute:
    return Execute("g", {v: v for v in inputs}, {v: v for v in outputs})


def test_an_ordinary_model() -> None:
    main = Steps((StreamIn("x", "x"), run("xw", "y"), StreamOut("y", "y")))
    flow = analyse({0: StreamIn("w", "w"), 1: main})
    assert flow.persistent == {"w"}
    assert flow.single_use == {"x", "y"}
    assert flow.load_only == {"w"}


def test_what_is_read_before_it_is_written_lives_across_runs() -> None:
    flow = analyse({1: Steps((run("s", "t"), Copy("t", "s")))})
    assert flow.persistent == {"s"}
    assert "s" not in flow.single_use


def test_what_another_program_reads_lives_across_runs() -> None:
    flow = analyse({1: StreamIn("x", "x"), 2: StreamOut("x", "x")})
    assert flow.persistent == {"x"}


def test_what_a_caller_has_written_does_not() -> None:
    body = run("x", "y")
    flow = analyse({1: Steps((StreamIn("x", "x"), ProgramCall(2))), 2: body})
    assert flow.persistent == {"x"}  # program 2 may also be run alone
    flow = analyse({1: Steps((StreamIn("x", "x"), body))})
    assert flow.persistent == frozenset()


def test_a_value_written_in_all_cases_is_written() -> None:
    cases: dict[int, Node] = {0: StreamIn("a", "x"), 1: StreamIn("b", "x")}
    after = (StreamOut("x", "out"),)
    choose = StreamIn("i", "i")
    both = analyse({1: Steps((choose, Switch("i", cases), *after))})
    assert both.persistent == frozenset()
    default = Switch("i", cases, Steps())
    some = analyse({1: Steps((choose, default, *after))})
    assert some.persistent == {"x"}


def test_a_repeat_that_never_runs_writes_nothing() -> None:
    for count, persistent in ((0, {"x"}), (1, set())):
        body = Repeat(count, StreamIn("x", "x"))
        flow = analyse({1: Steps((body, StreamOut("x", "out")))})
        assert flow.persistent == persistent


def test_a_value_used_twice_is_not_single() -> None:
    once = (StreamIn("x", "x"), StreamOut("x", "a"))
    assert analyse({1: Steps(once)}).single_use == {"x"}
    twice = (*once, StreamOut("x", "b"))
    assert analyse({1: Steps(twice)}).single_use == frozenset()


def test_load_only_means_by_load_programs_and_streams() -> None:
    assert analyse({0: StreamIn("w", "w"), 2: StreamIn("w", "w")}).load_only == set()
    assert analyse({0: run("x", "w")}).load_only == set()
    assert analyse({0: StreamIn("w", "w"), 1: ProgramCall(0)}).load_only == set()
    assert analyse({1: StreamIn("w", "w")}, load=(0, 1, 7)).load_only == {"w"}
