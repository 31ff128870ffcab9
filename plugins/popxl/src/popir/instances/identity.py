"""Identity of this process among the instances of a program, which its launcher states
in variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from popir.errors import IrError

#: The most instances of a program.
MOST = 1024
INDEX = "POPDIST_INSTANCE_INDEX"
COUNT = "POPDIST_NUM_INSTANCES"
REPLICAS = "POPDIST_NUM_TOTAL_REPLICAS"
IPUS = "POPDIST_NUM_IPUS_PER_REPLICA"
#: The memory that the instances of this machine share, and the process that made it.
MEMORY = "POPDIST_SHARED_MEMORY"
LAUNCHER = "POPDIST_LAUNCHER"
#: Variables of other launchers: the index and the number of processes.
OTHERS = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))


@dataclass(frozen=True, slots=True)
class Identity:
    """One instance of a program."""

    index: int = 0
    count: int = 1
    replicas: int = 1
    """The replicas of all instances together."""
    memory: str = ""
    """The path of the shared memory; empty: MPI connects the instances."""
    ipus_per_replica: int = 1

    @property
    def local_replicas(self) -> int:
        """Replicas of this instance."""
        return self.replicas // self.count

    @property
    def offset(self) -> int:
        """The number of this instance's first replica."""
        return self.index * self.local_replicas


def identity(environment: Mapping[str, str] | None = None) -> Identity:
    """Return the instance of this process; without a launcher the only one.

    Raises IrError if the variables contradict each other.
    """
    given = os.environ if environment is None else environment
    index, count, memory = 0, 1, ""
    if COUNT in given and INDEX in given:
        index, count = _number(given, INDEX), _number(given, COUNT)
        memory = given.get(MEMORY, "")
    else:
        for rank, size in OTHERS:
            if rank in given and size in given:
                index, count = _number(given, rank), _number(given, size)
                break
        else:
            if _number(given, COUNT, 1) > 1:
                raise IrError(
                    f"{COUNT} is {given[COUNT]} but {INDEX} is not set: start the "
                    "program with poprun, mpirun or mpiexec"
                )
    replicas = _number(given, REPLICAS, count)
    if not 0 <= index < count <= MOST:
        raise IrError(
            f"the launcher set instance {index} of {count}; expected 0 to "
            f"{count - 1}, and at most {MOST} instances"
        )
    if replicas < 1 or replicas % count:
        raise IrError(
            f"{REPLICAS} is {replicas}; it must be a multiple of the number of "
            f"instances ({count})"
        )
    return Identity(index, count, replicas, memory, _number(given, IPUS, 1))


def is_launched(environment: Mapping[str, str] | None = None) -> bool:
    """Return whether a launcher of instances started this process."""
    given = os.environ if environment is None else environment
    return any(rank in given for rank in (INDEX, *(rank for rank, _ in OTHERS)))


def _number(given: Mapping[str, str], name: str, default: int = 0) -> int:
    value = given.get(name, "").strip()
    if not value:
        return default
    if not value.isdecimal():
        raise IrError(f"{name} is {value!r}; expected a number")
    return int(value)
