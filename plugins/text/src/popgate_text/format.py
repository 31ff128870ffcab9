"""The model format of text folders (`app.repository.formats.ModelFormat`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.repository.formats import FormatRunner
from app.spec import ModelSpec
from popgate_text.config import TextConfig
from popgate_text.folder import TOKENS, describe, files_of, pad_id, root_of, understand


class TextFormat:
    """Folders with a tokenizer beside the ONNX file."""

    section = TextConfig
    optional_outputs = (TOKENS,)

    def files(self, folder: Path, options: TextConfig) -> tuple[Path, ...]:
        return files_of(folder, options)

    def notes(self, files: Sequence[Path], options: TextConfig) -> Sequence[str]:
        return describe(root_of(files), files[0], options)

    def recipe(self, files: Sequence[Path], options: TextConfig) -> Mapping[str, Any]:
        return understand(root_of(files), options).recipe()

    def convert(self, model: Any, recipe: Mapping[str, Any]) -> None:
        from popgate_text.conversion import convert

        convert(model, recipe)

    def ragged(self, files: Sequence[Path], options: TextConfig) -> Mapping[str, float]:
        """Return the padding values of all inputs that text models have."""
        folder = root_of(files)
        model = understand(folder, options)
        return {
            "input_ids": pad_id(folder, model),
            "attention_mask": 0,
            "token_type_ids": 0,
            "position_ids": model.offset,
        }

    def examples(
        self, files: Sequence[Path], options: TextConfig, names: Sequence[str]
    ) -> list[Mapping[str, Any]]:
        """Return example inputs of the converted model, one string each."""
        from popgate_text.examples import examples
        from popgate_text.tokenizer import TextTokenizer

        folder = root_of(files)
        model = understand(folder, options)
        return examples(model, TextTokenizer(folder, model), names)

    def scheduler(
        self,
        spec: ModelSpec,
        runner: FormatRunner,
        files: Sequence[Path],
        options: TextConfig,
    ) -> Any:
        from popgate_text.scheduler import TextScheduler
        from popgate_text.tokenizer import TextTokenizer

        folder = root_of(files)
        model = understand(folder, options)
        return TextScheduler(spec, runner, model, TextTokenizer(folder, model), options)

    def join(
        self, spec: ModelSpec, runner: FormatRunner, description: Mapping[str, Any]
    ) -> Any:
        """Return the scheduler of an HTTP worker (`app.repository.formats`)."""
        from popgate_text.scheduler import TextScheduler

        return TextScheduler.from_shared(spec, runner, description)


FORMAT = TextFormat()
