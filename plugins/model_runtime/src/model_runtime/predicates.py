# ruff: noqa: N802 - the names are the original's
"""Predicates, and the functions behind `predicate_factory`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, Generic, TypeAlias, TypeVar, overload

import popef_io
import popgate_sessions
from model_runtime.arguments import checked_callback, one_of
from popef import Anchor, ProgramFlow
from popef.errors import WrongType
from popef.taking import expected, got, numbers, text
from popgate_sessions import AnchorCallbackPolicy, PopefDataUsagePolicy

T = TypeVar("T")
Policy = TypeVar("Policy", bound=IntEnum)
Predicate: TypeAlias = Callable[[Anchor], Policy]
#: Decides whether an anchor's callback, or queue, is set: `AnchorCallbackPolicy`.
AnchorCallbackPredicate: TypeAlias = Predicate[AnchorCallbackPolicy]
#: Decides whether an anchor uses the data of the file: `PopefDataUsagePolicy`.
PopefDataUsagePredicate: TypeAlias = Predicate[PopefDataUsagePolicy]

null_anchor_callback_predicate: AnchorCallbackPredicate | None = None
null_popef_data_usage_predicate: PopefDataUsagePredicate | None = None


class AnchorWithPolicy(Generic[Policy]):
    """The policy of one anchor, given as an anchor, a name or a handle.

    For `predAnchorsPolicies`.
    """

    def __init__(self, anchor: Anchor | str, policy: Policy) -> None:
        self.anchor = anchor
        self.policy = policy

    def __repr__(self) -> str:
        return f"<AnchorWithPolicy {self.anchor!r} {self.policy.name}>"


class ProgramsWithPolicy(Generic[Policy]):
    """The policy of all anchors that one of these programs uses."""

    def __init__(self, programsIndexes: Sequence[int], policy: Policy) -> None:  # noqa: N803
        self.programsIndexes = programsIndexes
        self.policy = policy

    def __repr__(self) -> str:
        return f"<ProgramsWithPolicy {list(self.programsIndexes)} {self.policy.name}>"


class Factories(Generic[Policy]):
    """The functions of a namespace, with its default policies."""

    def __init__(self, accept: Policy, reject: Policy) -> None:
        self._kind = type(accept)
        self._accept = accept
        self._reject = reject

    def predProgramFlowLoad(
        self,
        flow: ProgramFlow,
        accept_policy: Policy | None = None,
        reject_policy: Policy | None = None,
    ) -> Predicate[Policy]:
        """Accept the anchors of any load program."""
        return self.predProgramIndexes(
            expected(flow, ProgramFlow).load(), accept_policy, reject_policy
        )

    def predProgramFlowMain(
        self,
        flow: ProgramFlow,
        accept_policy: Policy | None = None,
        reject_policy: Policy | None = None,
    ) -> Predicate[Policy]:
        """Accept the anchors of any main program."""
        return self.predProgramIndexes(
            expected(flow, ProgramFlow).main(), accept_policy, reject_policy
        )

    def predProgramFlowSave(
        self,
        flow: ProgramFlow,
        accept_policy: Policy | None = None,
        reject_policy: Policy | None = None,
    ) -> Predicate[Policy]:
        """Accept the anchors of any save program."""
        return self.predProgramIndexes(
            expected(flow, ProgramFlow).save(), accept_policy, reject_policy
        )

    def predProgramNotAssigned(
        self, accept_policy: Policy | None = None, reject_policy: Policy | None = None
    ) -> Predicate[Policy]:
        """Accept the anchors that belong to no program."""
        policies = self._policies(accept_policy, reject_policy)
        return _face(popgate_sessions.not_assigned(*policies))

    def predNonScalarType(
        self, accept_policy: Policy | None = None, reject_policy: Policy | None = None
    ) -> Predicate[Policy]:
        """Accept the anchors that are not scalars."""
        policies = self._policies(accept_policy, reject_policy)
        return _face(popgate_sessions.non_scalar(*policies))

    @overload
    def predProgramIndexes(
        self,
        program_indexes: Iterable[int],
        accept_policy: Policy | None = None,
        reject_policy: Policy | None = None,
    ) -> Predicate[Policy]: ...
    @overload
    def predProgramIndexes(
        self,
        accepted_programs_policies: Iterable[ProgramsWithPolicy[Policy]],
        reject_policy: Policy | None = None,
        /,
    ) -> Predicate[Policy]: ...
    @overload
    def predProgramIndexes(
        self,
        accepted_programs_policies: Iterable[ProgramsWithPolicy[Policy]],
        /,
        *,
        reject_policy: Policy,
    ) -> Predicate[Policy]: ...
    @overload
    def predProgramIndexes(
        self,
        *,
        accepted_programs_policies: Iterable[ProgramsWithPolicy[Policy]],
        reject_policy: Policy | None = None,
    ) -> Predicate[Policy]: ...

    def predProgramIndexes(
        self,
        program_indexes: Iterable[Any] | None = None,
        accept_policy: Policy | None = None,
        reject_policy: Policy | None = None,
        *,
        accepted_programs_policies: Iterable[Any] | None = None,
    ) -> Predicate[Policy]:
        """Accept the anchors of any of these programs. Programs with policies have
        their own.
        """
        given = one_of(
            "program_indexes and accepted_programs_policies",
            program_indexes,
            accepted_programs_policies,
        )
        items = list(_each(given, object))
        grouped = [isinstance(item, ProgramsWithPolicy) for item in items]
        if accepted_programs_policies is None and not any(grouped):
            accept, reject = self._policies(accept_policy, reject_policy)
            return _face(popgate_sessions.used_by(numbers(items), accept, reject))
        if not all(grouped):
            raise WrongType("expected ProgramsWithPolicy and no other argument")
        # as positional arguments, the reject policy is the second
        if accept_policy is not None:
            if reject_policy is not None or accepted_programs_policies is not None:
                raise WrongType(
                    "accept_policy is not allowed with ProgramsWithPolicy; set "
                    "the policies there"
                )
            reject_policy = accept_policy
        _, reject = self._policies(None, reject_policy)
        beneath = [
            popgate_sessions.ProgramsWithPolicy(
                numbers(g.programsIndexes), expected(g.policy, self._kind)
            )
            for g in items
        ]
        return _face(popgate_sessions.program_policies(beneath, reject))

    def predAnchorsPolicies(
        self,
        accepted_anchors_policies: Iterable[AnchorWithPolicy[Policy]],
        reject_policy: Policy | None = None,
    ) -> Predicate[Policy]:
        """Return the policies of these anchors."""
        _, reject = self._policies(None, reject_policy)
        named = [
            popgate_sessions.AnchorWithPolicy(
                a.anchor.handle() if isinstance(a.anchor, Anchor) else text(a.anchor),
                expected(a.policy, self._kind),
            )
            for a in _each(accepted_anchors_policies, AnchorWithPolicy)
        ]
        return _face(popgate_sessions.anchor_policies(named, reject))

    def andBind(
        self, accept_policy: Policy, reject_policy: Policy, *pred: Predicate[Policy]
    ) -> Predicate[Policy]:
        """Accept if all predicates in `pred` accept."""
        policies = self._policies(accept_policy, reject_policy)
        beneath = [to_engine(p, self._kind) for p in pred]
        return _face(popgate_sessions.and_bind(*policies, *beneath))

    def orBind(
        self, accept_policy: Policy, reject_policy: Policy, *pred: Predicate[Policy]
    ) -> Predicate[Policy]:
        """Accept if any predicate in `pred` accepts."""
        policies = self._policies(accept_policy, reject_policy)
        beneath = [to_engine(p, self._kind) for p in pred]
        return _face(popgate_sessions.or_bind(*policies, *beneath))

    def _policies(
        self, accept: Policy | None, reject: Policy | None
    ) -> tuple[Policy, Policy]:
        return (
            expected(self._accept if accept is None else accept, self._kind),
            expected(self._reject if reject is None else reject, self._kind),
        )


def _each(values: Iterable[T], kind: type[T]) -> Iterator[T]:
    if not isinstance(values, Iterable):
        raise WrongType(f"expected a list, {got(values)}")
    return (expected(value, kind) for value in values)


def to_engine(
    predicate: Predicate[Policy], kind: type[Policy]
) -> Callable[[popef_io.Anchor], Policy]:
    """Return a function of the engine that calls `predicate`. Raises WrongType if it is
    not callable or returns no such policy.
    """
    asked = checked_callback("predicate", predicate)

    def policy(anchor: popef_io.Anchor) -> Policy:
        given = asked(Anchor.from_io(anchor))
        if not isinstance(given, kind):
            raise WrongType(
                f"the predicate must return {kind.__name__} for "
                f"{anchor.name!r}, {got(given)}"
            )
        return given

    return policy


def _face(predicate: Callable[[popef_io.Anchor], Policy]) -> Predicate[Policy]:
    return lambda anchor: predicate(expected(anchor, Anchor).to_io())
