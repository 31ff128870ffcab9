"""Check the counts of one request in each encoding, small and large, against a table.

    python -m bench.counts            # compare with bench/counts.toml
    python -m bench.counts --write    # after a change that is meant
    python -m bench.counts --compiled --only small-json,swap

Counts hold on a busy machine, where times do not. The table has a row for each encoding
and size, and one for a swap: a request that evicts a model and loads its own.

- `calls`: Python calls of our functions (`bench.calls`), in plain Python.
- `plain`: system calls of the main threads of the gateway and of the device process, by
  strace. A call that happens in fewer than half of the requests belongs to no request.
- `plain-memory`, `plain-wakeups`: allocations, copies and wake-ups of all threads
  (`bench.counts.memory`).
- `models`: models that a swap loads and evicts.

`compiled`, `compiled-memory` and `compiled-wakeups` are those of the compiled hot path.
Without strace or a C compiler their counts are left out. Some counts depend on which
process comes first. `bench/counts/table.py` says which, why, and by how much.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Collection, Sequence

from bench.cases.scenarios import Scenario
from bench.counts.cases import CASES
from bench.counts.memory import memory_and_wakeups
from bench.counts.python_calls import python_calls
from bench.counts.swap import swap_calls, swap_memory, swap_system_calls
from bench.counts.system_calls import can_trace, system_calls
from bench.counts.table import TABLE, differences, to_toml, updated
from bench.servers.interposed import can_build

SWAP = "swap"
Table = dict[str, dict[str, object]]


def measured(names: Collection[str], *, compiled: bool) -> Table:
    """Count the cases with these names; with progress on stderr."""
    cases = [case for name, case in CASES.items() if name in names]
    print("calls ...", file=sys.stderr, flush=True)
    found = python_calls(cases) if cases else {}
    table: Table = {name: {"calls": counts} for name, counts in found.items()}
    if SWAP in names:
        table[SWAP] = dict(swap_calls())
    for kind in ("plain", "compiled") if compiled else ("plain",):
        _add(table, cases, kind)
    return table


def _add(table: Table, cases: Sequence[Scenario], kind: str) -> None:
    """Add the system calls, memory and wake-ups of plain or compiled code."""
    compiled = kind == "compiled"
    print(f"{kind} ...", file=sys.stderr, flush=True)
    if can_trace():
        traced = system_calls(cases, compiled=compiled) if cases else {}
        for name, counts in traced.items():
            table[name][kind] = counts
        if SWAP in table:
            table[SWAP][kind] = swap_system_calls(compiled=compiled)
    if can_build():
        found = memory_and_wakeups(cases, compiled=compiled) if cases else {}
        if SWAP in table:
            found[SWAP] = swap_memory(compiled=compiled)
        for name, usage in found.items():
            table[name] |= {f"{kind}-{what}": value for what, value in usage.items()}


def _row(name: str, stated: Table, found: Table) -> dict[str, object]:
    """Return the new row of a case. What was not counted stays."""
    old, new = stated.get(name, {}), found.get(name, {})
    return old | {
        kind: updated(old.get(kind), counts, f"{name} {kind}")
        for kind, counts in new.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write bench/counts.toml")
    parser.add_argument("--compiled", action="store_true", help="compiled code, too")
    parser.add_argument("--only", help="some rows, by name, with commas")
    options = parser.parse_args()
    every = [*CASES, SWAP]
    names = options.only.split(",") if options.only else every
    if unknown := set(names) - set(every):
        parser.error(f"no such rows: {', '.join(sorted(unknown))}")
    found = measured(names, compiled=options.compiled)
    stated = tomllib.loads(TABLE.read_text())
    if options.write:
        TABLE.write_text(to_toml({name: _row(name, stated, found) for name in every}))
        return 0
    wrong = [
        line
        for case, row in found.items()
        for kind in row
        for line in differences(
            stated.get(case, {}).get(kind, {}), row[kind], f"{case} {kind}"
        )
    ]
    print("\n".join(wrong) or f"as stated: {len(found)} rows")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
