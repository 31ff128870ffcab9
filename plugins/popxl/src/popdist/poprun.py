"""The command `poprun`: starts the instances of a program."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence

from popir.instances.launcher import LaunchPlan, environment, launch

#: Options about hardware partitions and places. Each takes a value and has no effect.
WITHOUT_EFFECT = (
    *("ipus-per-ild", "num-ilds", "vipu-partition", "vipu-server-host"),
    *("vipu-server-port", "vipu-server-timeout", "vipu-allocation", "vipu-cluster"),
    *("vipu-cli-path", "update-partition", "remove-partition", "reset-partition"),
    *("print-topology", "numa-aware", "host-subnet", "sync-type", "offline-mode"),
    *("synchronise-tests", "ssh-timeout", "process-placement", "instances-per-host"),
    *("mpi-global-args", "gcda-dir", "ipuof-config-path"),
)
_TRUE = ("yes", "true", "on", "1")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `poprun`; exit with the code of the first instance that failed."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if not given.command:
        parser.error("expected a program: poprun --num-instances 2 python train.py")
    for name in ("num_instances", "num_replicas"):
        if (number := getattr(given, name)) is not None and number < 1:
            option = name.replace("_", "-")
            parser.error(f"--{option} {number}: it must be 1 at least")
    instances = given.num_instances or given.num_replicas or 1
    replicas = given.num_replicas or instances
    if replicas % instances:
        parser.error(
            f"--num-replicas {replicas} must be a multiple of --num-instances "
            f"{instances}"
        )
    only = given.only_output_from_instance
    if only is not None and not 0 <= only < instances:
        parser.error(
            f"--only-output-from-instance {only}: expected 0 to {instances - 1}"
        )
    for name in WITHOUT_EFFECT:
        value = getattr(given, name.replace("-", "_"))
        if given.verbose and value is not None:
            sys.stderr.write(f"poprun: --{name} has no effect here\n")
    try:
        variables = _variables(given.mpi_local_args)
    except ValueError as error:
        parser.error(str(error))
    if given.executable_cache_path:
        variables["POPXL_CACHE_DIR"] = given.executable_cache_path
    plan = LaunchPlan(
        given.command,
        instances,
        replicas,
        given.ipus_per_replica,
        only,
        str(given.tag_output).lower() in _TRUE,
        variables,
    )
    if given.host:
        _hand_over(plan, given.host)
    if shutil.which(plan.command[0]) is None:
        parser.error(f"the program {plan.command[0]!r} was not found")
    sys.exit(launch(plan))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "poprun",
        description="Start the instances of a PopXL program.",
        allow_abbrev=False,
    )

    def option(name: str, short: str = "", **how: object) -> None:
        # The original takes both spellings.
        names = dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}"))
        if short:
            names[short] = None
        parser.add_argument(*names, **how)  # type: ignore[arg-type]

    option("num-instances", type=int, help="processes to start")
    option("num-replicas", "-n", type=int, help="replicas of all instances together")
    option(
        "ipus-per-replica",
        type=int,
        default=1,
        help="passed to the program, without other effect",
    )
    option("host", "-H", help="machines, separated by commas; instances start over MPI")
    option(
        "only-output-from-instance",
        type=int,
        help="show the output of this instance only",
    )
    option("tag-output", default="no", help="yes: begin each line with its instance")
    option("executable-cache-path", help="folder of compiled programs")
    option(
        "mpi-local-args",
        action="append",
        default=[],
        help="'-x NAME=VALUE' sets an environment variable of the instances",
    )
    option(
        "verbose",
        "-v",
        action="count",
        default=0,
        help="list the options without effect",
    )
    for name in WITHOUT_EFFECT:
        option(name, help="accepted, but without effect")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="program, arguments")
    return parser


def _variables(given: Sequence[str]) -> dict[str, str]:
    """Return the variables of `-x NAME` and `-x NAME=VALUE`; ValueError for anything
    else.
    """
    found: dict[str, str] = {}
    for text in given:
        words = iter(shlex.split(text))
        for word in words:
            setting = next(words, "") if word == "-x" else ""
            name, is_set, value = setting.partition("=")
            if not name:
                raise ValueError(
                    f"--mpi-local-args {text!r}: expected -x NAME or -x NAME=VALUE"
                )
            # Instances have all variables of this process.
            if is_set:
                found[name] = value
    return found


def mpiexec() -> str | None:
    """Return the path of `mpiexec`: beside this Python, else the system's."""
    beside = os.path.dirname(sys.executable)
    return shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")


def _hand_over(plan: LaunchPlan, hosts: str) -> None:
    """Replace this process by `mpiexec`, which starts the instances on `hosts`."""
    command = mpiexec()
    if command is None:
        sys.exit(
            "poprun: --host needs MPI, but mpiexec was not found; pip install "
            "'popgate[mpi]'"
        )
    count = len(hosts.split(","))
    if plan.instances % count:
        sys.exit(
            f"poprun: --num-instances {plan.instances} must be a multiple of "
            f"the {count} hosts of --host"
        )
    arguments = [command, "-hosts", hosts, "-ppn", str(plan.instances // count)]
    arguments += ["-n", str(plan.instances), *plan.command]
    sys.stdout.flush()
    os.execve(command, arguments, environment(plan))
