"""`KIND`: makes the ensembles of the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from app.config.declared import DeclaredTensors
from app.config.model_config import ModelConfig
from app.serving.table import ModelTable
from app.spec import ModelSpec
from popgate_ensembles.graph import EnsembleGraph, compose, described
from popgate_ensembles.runner import EnsembleRunner, face_of


class _EnsembleKind:
    """Makes ensembles (`app.serving.ensemble_kind.EnsembleKind`)."""

    def spec(
        self,
        name: str,
        version: str,
        config: ModelConfig,
        members: Sequence[ModelSpec],
        declared: DeclaredTensors,
    ) -> ModelSpec:
        """Return the ensemble as a model. Raises ValueError."""
        return _graph(name, version, config, members, declared).spec

    def ensemble(
        self,
        name: str,
        version: str,
        config: ModelConfig,
        members: Sequence[ModelSpec],
        declared: DeclaredTensors,
        table: ModelTable,
    ) -> EnsembleRunner:
        """Return the ensemble, which runs the models of `table`. Raises ValueError."""
        graph = _graph(name, version, config, members, declared)
        steps = config.ensemble
        assert steps is not None
        return EnsembleRunner(
            graph,
            members,
            table,
            lambda others: compose(name, version, steps, others, declared),
        )

    def join(
        self, shared: bytes, members: Sequence[ModelSpec], table: ModelTable
    ) -> EnsembleRunner:
        """Return an ensemble that another process has made. Raises ValueError.

        Its members may be replaced by models with the same tensors.
        """
        graph = EnsembleGraph.from_message(msgspec.msgpack.decode(shared))
        before = [face_of(member) for member in members]

        def compose_again(others: Sequence[ModelSpec]) -> EnsembleGraph:
            if list(map(face_of, others)) != before:
                raise ValueError("the members take or return other tensors than before")
            return graph

        return EnsembleRunner(graph, members, table, compose_again)

    def __repr__(self) -> str:
        return "<ensembles>"


def _graph(
    name: str,
    version: str,
    config: ModelConfig,
    members: Sequence[ModelSpec],
    declared: DeclaredTensors,
) -> EnsembleGraph:
    assert config.ensemble is not None
    graph = compose(name, version, config.ensemble, members, declared)
    return replace(graph, spec=described(graph.spec, config))


KIND = _EnsembleKind()
