"""The other ends of `bench.queues`: processes that send messages back.

`rings` handles a request as a device process does, without a model. It takes
submissions from the link, reads the input ring, copies to the output ring, completes,
and sleeps if nothing is left.
"""

from __future__ import annotations

import os
import select
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.queues import Queue

from engine import keep_large_blocks
from engine.transport.channel import REQUEST, Channel, ChannelLayout
from engine.transport.link import PARKED, Link
from engine.transport.outcome import DeviceOutcome
from engine.transport.ring_buffer import full_fence


class RingsEcho:
    """One client's link and channel, served by one thread."""

    def __init__(
        self, link: Link, channel: Channel, device_fd: int, client_fd: int, spin_ns: int
    ) -> None:
        self._link = link
        self._channel = channel
        self._device_fd = device_fd
        self._client_fd = client_fd
        self._spin_ns = spin_ns
        self._poller = select.poll()
        self._poller.register(device_fd, select.POLLIN)
        self._poller.register(sys.stdin, select.POLLIN | select.POLLHUP)

    def run(self) -> None:
        """Run until the client closes our standard input, or ends."""
        while True:
            submissions = self._link.submissions.drain()
            for _ in submissions:
                self._echo()
            if submissions:
                os.eventfd_write(self._client_fd, 1)
            elif not self._looked() and not self._slept():
                return

    def _echo(self) -> None:
        channel = self._channel
        source, target = channel.inputs[0], channel.outputs[0]
        slot = channel.requests.try_read_lock()
        number = REQUEST.unpack_from(channel.view, channel.request_at(slot))[0]
        slot = source.try_read_lock()
        offset, nbytes, shape = source.record(slot)
        place = target.place(nbytes)
        data = source.payload[offset : offset + nbytes]
        target.payload[place : place + nbytes] = data
        target.describe(0, number, place, nbytes, shape)
        target.write_complete()
        self._link.completions.put(0, DeviceOutcome.DONE, number)
        channel.requests.read_complete()
        source.read_complete()

    def _looked(self) -> bool:
        """Poll for a moment before sleeping; return whether anything came."""
        end = time.monotonic_ns() + self._spin_ns
        while time.monotonic_ns() < end:
            if self._link.submissions.has_news:
                return True
            os.sched_yield()
        return False

    def _slept(self) -> bool:
        """Sleep until woken; return False if the client is gone."""
        link = self._link
        link.words[PARKED] = 1
        full_fence()
        if not link.submissions.has_news:
            ready = dict(self._poller.poll())
            if sys.stdin.fileno() in ready:
                return False
            os.eventfd_read(self._device_fd)
        link.words[PARKED] = 0
        return True


def echo_pipe(connection: Connection) -> None:
    """Send each message back by `multiprocessing.Connection`."""
    keep_large_blocks()
    while True:
        try:
            connection.send_bytes(connection.recv_bytes())
        except (EOFError, BrokenPipeError):
            return


def echo_queue(source: Queue[bytes | None], target: Queue[bytes]) -> None:
    """Put each message of one queue into the other; None ends it."""
    keep_large_blocks()
    while (data := source.get()) is not None:
        target.put(data)


def main() -> None:
    """Run the echo. Arguments: LINK CHANNEL DOORBELL BELL SLOTS BYTES SPIN_NS."""
    keep_large_blocks()
    link, channel, device_fd, client_fd, slots, room, spin = map(int, sys.argv[1:])
    layout = ChannelLayout(slots, (room,), (room,))
    RingsEcho(
        Link.attach(link), Channel.attach(channel, layout), device_fd, client_fd, spin
    ).run()


if __name__ == "__main__":
    main()
