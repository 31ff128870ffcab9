"""Save programs in a device process. They read the present state of a replica."""

from __future__ import annotations

from engine.programs.executor import Executor
from engine.programs.model_data import ModelData, ProgramStreams
from engine.programs.time_limit import TimeLimit
from engine.tensor import Tensor
from popef_io import Metadata, TensorType

#: Seconds that the save programs may take. Nothing else runs meanwhile.
SAVE_LIMIT = 60.0


class SavePrograms:
    """The save programs of one replica, over the variables of its main programs.

    The same thread runs both.
    """

    def __init__(self, executor: Executor, metadata: Metadata, data: ModelData) -> None:
        self._executor = executor
        self._programs = metadata.program_flow.save
        self._data = data
        self._outputs = {
            a.handle: a for a in metadata.anchors if a.type is TensorType.OUTPUT
        }

    def run(self) -> dict[str, Tensor]:
        """Run the save programs and return their data by tensor name. If a tensor is
        transferred several times, return the last transfer.

        Raises the errors of `Executor.run`. Safe to repeat, because saving changes no
        state unless the programs themselves do.
        """
        streams = ProgramStreams(self._data)
        with TimeLimit(SAVE_LIMIT, self._executor.new_options) as limit:
            self._executor.run(self._programs, streams, limit.options)
        saved = {}
        for handle, value in streams.outputs.items():
            anchor = self._outputs.get(handle)
            if anchor is not None:
                data_type = anchor.tensor_info.data_type
                saved[anchor.name] = Tensor.from_numpy(value, data_type)
        return saved

    def __repr__(self) -> str:
        return f"<SavePrograms {list(self._programs)} of {self._executor!r}>"
