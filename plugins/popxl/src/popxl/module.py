"""Modules: objects whose `build` makes a graph."""

from __future__ import annotations

from typing import Any


class Module:
    """A base class; `Ir.create_graph` builds a graph of an instance."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.build(*args, **kwargs)

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Make the graph's operators; to be overridden."""
        raise NotImplementedError("Your popxl.Module must have a `build` method.")
