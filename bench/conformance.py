"""Run of every ONNX backend test that OIP can carry, over HTTP with a stock client.

    python -m bench.conformance                    # all of them
    python -m bench.conformance --only softmax     # names that contain a text
    python -m bench.conformance --out bench/results/conformance.json

Each case is run in ONNX Runtime in process first, as onnx's own runner does; cases that
fail there are reported apart. The rest is compiled with `popgate compile`, served 150
models at a time from one repository folder, and called with `tritonclient.http`: once
with binary data and once as JSON. Exit code 1 if a case that ONNX Runtime passes in
process fails through the gateway.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tritonclient.http as triton

from bench.cases.backend import (
    Case,
    NotCarriable,
    assert_similar,
    load_cases,
    run_in_process,
)
from bench.servers.machine import describe
from bench.servers.server import HOST, Server, compile_models, gateway

GROUP = 150
COMPILE_AT_ONCE = 200
#: The promise: one folder of `GROUP` models is ready within this many seconds.
READY_WITHIN = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one case. `reason` is empty if it passed."""

    name: str
    step: str  # in process, compile, load, binary, json
    reason: str = ""

    @property
    def passed(self) -> bool:
        return not self.reason


@dataclass(frozen=True, slots=True)
class Result:
    """The whole set. `calls` has an outcome for each served case and encoding."""

    cases: int
    passing: list[str]
    not_carriable: list[NotCarriable]
    not_passable: list[Outcome]
    refused: list[Outcome]
    calls: list[Outcome]
    ready_seconds: list[float]
    not_sent_as_json: dict[str, str]
    datatypes: dict[str, int]

    @property
    def failures(self) -> list[Outcome]:
        """Return the cases that ONNX Runtime passes in process and we did not."""
        return self.refused + [each for each in self.calls if not each.passed]

    @property
    def passed(self) -> int:
        return len(self.passing) - len({each.name for each in self.failures})

    def as_dict(self) -> dict[str, object]:
        document = {
            "passed": self.passed,
            "failed_by_us": [asdict(each) for each in self.failures],
            **asdict(self),
        }
        # One line for each case that passed is enough.
        document["calls"] = Counter(c.step for c in self.calls if c.passed)
        return document


def first_lines(error: BaseException | str) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def in_process(cases: Sequence[Case]) -> tuple[list[Case], list[Outcome]]:
    """Return the cases that ONNX Runtime passes, and why it does not pass
    the others.
    """
    passing, failing = [], []
    for case in cases:
        try:
            run_in_process(case)
        except Exception as error:
            failing.append(Outcome(case.name, "in process", first_lines(error)))
        else:
            passing.append(case)
    return passing, failing


def compile_cases(cases: Sequence[Case], folder: Path) -> list[Outcome]:
    """Compile into `folder`/NAME.popef; return an outcome for each refused case."""
    sources = folder.with_name("onnx")
    sources.mkdir(parents=True, exist_ok=True)
    refused = []
    for some in _groups(cases, COMPILE_AT_ONCE):
        paths = [sources / f"{case.name}.onnx" for case in some]
        for case, path in zip(some, paths, strict=True):
            path.write_bytes(case.model.SerializeToString())
        done = compile_models(paths, folder)
        said = done.stdout + done.stderr
        missing = [
            each for each in some if not (folder / f"{each.name}.popef").exists()
        ]
        refused += [
            Outcome(case.name, "compile", _what_was_said(case.name, said))
            for case in missing
        ]
        if bool(missing) != bool(done.returncode):
            msg = (
                f"popgate compile ended with {done.returncode}, {len(missing)} missing"
            )
            raise RuntimeError(f"{msg}\n{said[-2000:]}")
    return refused


def _what_was_said(name: str, output: str) -> str:
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if name in line:
            return first_lines(" ".join(lines[number : number + 4]))
    return "no file, and nothing said about it"


def call(client: triton.InferenceServerClient, case: Case, *, binary: bool) -> None:
    """Send every data set and compare.

    Raises the errors of the client and of the check.
    """
    names = [output.name for output in case.model.graph.output]
    for data_set in case.data_sets:
        result = client.infer(
            case.name,
            [_input(name, a, binary) for name, a in data_set.inputs.items()],
            outputs=[triton.InferRequestedOutput(n, binary_data=binary) for n in names],
        )
        outputs = {name: result.as_numpy(name) for name in names}
        absent = [name for name, array in outputs.items() if array is None]
        assert not absent, f"outputs {absent} are missing in the answer"
        assert_similar(case, data_set, outputs)


def _input(name: str, array: np.ndarray, binary: bool) -> triton.InferInput:
    if array.dtype.kind in "SU":
        array = array.astype(object)
    datatype = triton_datatype(array)
    given = triton.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array, binary_data=binary)
    return given


def triton_datatype(array: np.ndarray) -> str:
    datatype = triton.np_to_triton_dtype(array.dtype)
    assert datatype is not None, f"tritonclient knows no datatype for {array.dtype}"
    return str(datatype)


def client_cannot(case: Case) -> str:
    """Return why the stock client cannot send this case as JSON; empty if it can."""
    if any(
        a.dtype.name == "bfloat16" for d in case.data_sets for a in d.inputs.values()
    ):
        return "the client sends BF16 as binary data only"
    return ""


def call_cases(server: Server, cases: Sequence[Case]) -> Iterator[Outcome]:
    """Return an outcome for each case and encoding, on a server that is ready."""
    client = triton.InferenceServerClient(
        f"{HOST}:{server.port}", connection_timeout=60.0, network_timeout=60.0
    )
    with client:
        for case in cases:
            for step, binary in (("binary", True), ("json", False)):
                if not binary and client_cannot(case):
                    continue
                try:
                    call(client, case, binary=binary)
                except Exception as error:
                    yield Outcome(case.name, step, first_lines(error))
                else:
                    yield Outcome(case.name, step)


def serve_and_call(
    cases: Sequence[Case], compiled: Path, folder: Path, devices: str | None
) -> tuple[float, list[Outcome]]:
    """Serve one group from `folder`; return seconds until ready, and the outcomes."""
    folder.mkdir()
    for case in cases:
        shutil.copy(compiled / f"{case.name}.popef", folder)
    with gateway(folder, devices=devices) as server:
        ready = server.wait_ready(4 * READY_WITHIN)
        return ready, list(call_cases(server, cases))


def _groups(cases: Sequence[Case], size: int) -> Iterator[Sequence[Case]]:
    for start in range(0, len(cases), size):
        yield cases[start : start + size]


def report(title: str, outcomes: Sequence[Outcome], limit: int = 40) -> None:
    print(f"\n{title}: {len(outcomes)}")
    for outcome in outcomes[:limit]:
        print(f"  {outcome.name} [{outcome.step}]: {outcome.reason}")
    if len(outcomes) > limit:
        print(f"  … and {len(outcomes) - limit} more")


def run(options: argparse.Namespace, folder: Path) -> Result:
    cases, not_carriable = load_cases()
    cases = [case for case in cases if options.only in case.name][: options.limit]
    passing, not_passable = in_process(cases)
    print(f"{len(passing)} of {len(cases)} cases pass in ONNX Runtime in process")
    started = time.monotonic()
    refused = compile_cases(passing, folder / "compiled")
    print(f"compiled in {time.monotonic() - started:.0f} s, {len(refused)} refused")
    bad = {outcome.name for outcome in refused}
    served = [case for case in passing if case.name not in bad]
    calls: list[Outcome] = []
    ready_seconds = []
    for number, some in enumerate(_groups(served, options.group)):
        ready, outcomes = serve_and_call(
            some, folder / "compiled", folder / f"group{number}", options.devices
        )
        failed = sum(not each.passed for each in outcomes)
        print(f"{len(some)} models ready in {ready:.2f} s, {failed} calls failed")
        ready_seconds.append(round(ready, 2))
        calls += outcomes
    return Result(
        cases=len(cases),
        passing=[case.name for case in passing],
        not_carriable=not_carriable,
        not_passable=not_passable,
        refused=refused,
        calls=calls,
        ready_seconds=ready_seconds,
        not_sent_as_json={c.name: why for c in served if (why := client_cannot(c))},
        datatypes=dict(Counter(t for case in passing for t in case.datatypes)),
    )


def summarize(result: Result) -> int:
    """Print the result; returns the exit code."""
    report("not passable in ONNX Runtime", result.not_passable, 8)
    reasons = Counter(each.reason for each in result.not_carriable)
    print(f"\nnot carriable by the protocol: {len(result.not_carriable)}")
    for reason, count in reasons.most_common():
        print(f"  {count:4} {reason}")
    for name, reason in result.not_sent_as_json.items():
        print(f"not sent as JSON: {name}: {reason}")
    report("failed by us", result.failures)
    as_json = sum(each.passed for each in result.calls if each.step == "json")
    print(
        f"\npassed {result.passed} (as JSON too: {as_json})"
        f" / not passable in ONNX Runtime {len(result.not_passable)}"
        f" / not carriable {len(result.not_carriable)}"
        f" / failed by us {len({each.name for each in result.failures})};"
        f" seconds until ready, by group: {result.ready_seconds}"
    )
    late = [each for each in result.ready_seconds if each > READY_WITHIN]
    return int(bool(result.failures or late))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--limit", type=int, help="the first N cases only")
    parser.add_argument("--group", type=int, default=GROUP, help="models at a time")
    parser.add_argument("--devices", help="passed on to popgate serve")
    parser.add_argument("--out", type=Path, help="write the whole result as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = run(options, Path(folder))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        document = {"machine": describe().as_dict(), **result.as_dict()}
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    return summarize(result)


if __name__ == "__main__":
    sys.exit(main())
