"""A model's configuration, which the model can complete and read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ModelConfig:
    """The configuration that `auto_complete_config` completes."""

    _TENSOR = frozenset({"name", "data_type", "dims", "optional"})

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = dict(config)
        self._config.setdefault("input", [])
        self._config.setdefault("output", [])

    def as_dict(self) -> dict[str, Any]:
        return self._config

    def add_input(self, tensor: Mapping[str, Any]) -> None:
        self._add("input", tensor)

    def add_output(self, tensor: Mapping[str, Any]) -> None:
        self._add("output", tensor)

    def _add(self, kind: str, tensor: Mapping[str, Any]) -> None:
        allowed = self._TENSOR - ({"optional"} if kind == "output" else set())
        missing = {"name", "data_type", "dims"} - tensor.keys()
        if missing or tensor.keys() - allowed:
            raise ValueError(
                f"{kind} must have name, data_type and dims, got {sorted(tensor)}"
            )
        tensors: list[dict[str, Any]] = self._config[kind]
        found = next((t for t in tensors if t["name"] == tensor["name"]), None)
        if found is None:
            self._config[kind] = [*self._config[kind], dict(tensor)]
            return
        for key in ("data_type", "dims"):
            given = list(tensor[key]) if key == "dims" else tensor[key]
            if found.get(key) and found[key] != given:
                raise ValueError(
                    f"{kind} {tensor['name']!r} has {key} {found[key]} in the "
                    f"configuration, but {given} in auto_complete_config"
                )
            found[key] = given

    def set_max_batch_size(self, max_batch_size: int) -> None:
        before = self._config.get("max_batch_size") or 0
        if before > max_batch_size:
            raise ValueError(
                f"max_batch_size is {before} in the configuration, but "
                f"{max_batch_size} in auto_complete_config"
            )
        if not before:
            self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        if not self._config.get("sequence_batching"):
            self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, policy: Mapping[str, Any]) -> None:
        if policy.keys() != {"decoupled"}:
            raise ValueError("a transaction policy has only the key 'decoupled'")
        self._config["model_transaction_policy"] = dict(policy)


def get_input_config_by_name(config: Mapping[str, Any], name: str) -> Any:
    return next((t for t in config.get("input", ()) if t["name"] == name), None)


def get_output_config_by_name(config: Mapping[str, Any], name: str) -> Any:
    return next((t for t in config.get("output", ()) if t["name"] == name), None)


def using_decoupled_model_transaction_policy(config: Mapping[str, Any]) -> bool:
    return bool(config.get("model_transaction_policy", {}).get("decoupled"))
