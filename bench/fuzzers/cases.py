"""Run cases by their seeds, and print what they found. Each fuzzer has this as its main
loop, with the options `--cases`, `--seed` and `--show`.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

#: The most characters printed of one wrong case.
SHOWN: Final = 2000


def run_cases(
    program: str,
    text: str | None,
    check: Callable[[int], tuple[str, str]],
    show: Callable[[int], object],
    arguments: Sequence[str] | None = None,
    reasons: Mapping[str, str] | None = None,
) -> int:
    """Check each case and print the outcomes. Return 1 if a case is wrong, otherwise 0.

    `check` returns the outcome of the case of a seed, and why it is wrong (empty: it is
    right). `show` returns a wrong case as it is printed. `reasons` explains outcomes.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--show", type=int, default=10, help="most wrong cases to show")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    seen: Counter[str] = Counter()
    wrong: list[tuple[int, str]] = []
    for seed in range(options.seed, options.seed + options.cases):
        outcome, why = check(seed)
        if why:
            wrong.append((seed, why))
        else:
            seen[outcome] += 1
    for seed, why in wrong[: options.show]:
        print(f"seed {seed}: {why}"[:SHOWN])
        print(f"  {show(seed)}"[:SHOWN])
    seconds = time.monotonic() - began
    rate = options.cases / max(seconds, 1e-9)
    last = options.seed + options.cases - 1
    print(f"seeds {options.seed} to {last} in {seconds:.0f} s, {rate:.0f} a second")
    for name, count in seen.most_common():
        reason = (reasons or {}).get(name, "")
        print(f"  {count:8} {name}{': ' if reason else ''}{reason}")
    print(f"  {len(wrong):8} wrong")
    return 1 if wrong else 0
