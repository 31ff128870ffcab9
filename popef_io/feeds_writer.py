"""Write several feeds in turns, as when several inputs are recorded together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from popef_io.blob_writer import BlobWriter, Buffer, expected_size
from popef_io.draft import Draft, WriterState
from popef_io.errors import DuplicateBlobError, InvalidValueError


class FeedsWriter(Draft):
    """Several live feed blobs of a `Writer`, which makes this object.

    The size of each feed is known, so each has its place in the file from the
    beginning. The feeds may take tensors in any order of turns (PopEF User Guide 3.2).
    All feeds must be complete at closing. An exception inside the `with` block discards
    all of them.
    """

    def __init__(
        self, blobs: Sequence[BlobWriter], finished: Callable[..., None]
    ) -> None:
        super().__init__()
        self._blob_by_name: dict[str, BlobWriter] = {}
        self._finished = finished
        for blob in blobs:
            name = getattr(blob.info, "name", "")
            if expected_size(blob.info) is None:
                raise InvalidValueError(
                    f"create_feeds cannot write feed {name!r}, because its elements "
                    "are strings of varying size; use create_feed_data"
                )
            if name in self._blob_by_name:
                raise DuplicateBlobError(
                    "DATA_FEED", name, f"feed {name!r} is given twice"
                )
            self._blob_by_name[name] = blob

    def write(self, name: str, data: Buffer) -> int:
        """Append to the feed `name`, as `BlobWriter.write` does."""
        blob = self._blob_by_name.get(name)
        if blob is None:
            known = ", ".join(map(repr, self._blob_by_name))
            raise InvalidValueError(f"unknown feed {name!r}; the feeds are {known}")
        return blob.write(data)

    def close(self) -> None:
        """Finish all feeds. Raises WriterStateError if one is incomplete."""
        if self.state is WriterState.CLOSED:
            return
        for blob in self._blob_by_name.values():
            blob.check_open()
            blob.check_complete()
        for blob in self._blob_by_name.values():
            blob.close()
        self.state = WriterState.CLOSED
        self._finished(*self._blob_by_name.values())

    def discard(self) -> None:
        """Discard all feeds."""
        if self.state is not WriterState.OPEN:
            return
        for blob in self._blob_by_name.values():
            blob.discard()
        self.state = WriterState.DISCARDED
        self._finished()

    def __repr__(self) -> str:
        names = ", ".join(self._blob_by_name)
        return f"<FeedsWriter {names} {self.state.value}>"
