"""`Connections`: the clients, channels and replicas of a device process."""

from __future__ import annotations

import os
from collections import deque

from engine.errors import InvalidInput
from engine.transport.channel import Channel
from engine.transport.link import Link
from engine.worker.client_channel import ClientChannel
from engine.worker.fair_queue import DeviceShares
from engine.worker.replica import Replica


class ClientProcess:
    """A client process: its link and the eventfd that wakes it."""

    def __init__(self, number: int, link: Link, wake_fd: int, pid: int) -> None:
        self.number = number
        self.link = link
        self.wake_fd = wake_fd
        self.pid = pid
        self.channels: dict[int, tuple[ClientChannel, Replica]] = {}

    def close(self) -> None:
        self.link.close()
        os.close(self.wake_fd)

    def __repr__(self) -> str:
        return (
            f"<ClientProcess {self.number} of process {self.pid}, {len(self.channels)}>"
        )


class Connections:
    """Client processes and replicas, and which replicas have waiting requests.

    Only for the thread that schedules. Its fields stay the same objects.
    """

    def __init__(self) -> None:
        self.clients: dict[int, ClientProcess] = {}
        #: The links of all clients.
        self.links: list[Link] = []
        self.replicas: dict[int, Replica] = {}
        #: The replicas with waiting requests, in turn.
        self.ready: deque[Replica] = deque()
        #: These, and the replica that runs.
        self.queued: set[Replica] = set()
        #: The replicas whose next batch runs aside, because it may be large
        #: (engine/worker/large_runs.py).
        self.go_aside: set[Replica] = set()
        self.shares = DeviceShares()

    def add_client(self, client: ClientProcess) -> None:
        """Serve a client process that has connected."""
        self.clients[client.number] = client
        self.links.append(client.link)

    def add_replica(self, number: int, replica: Replica) -> None:
        """Serve a model that was loaded."""
        replica.use(self.shares)
        self.replicas[number] = replica

    def add_channel(
        self,
        number: int,
        channel: Channel,
        client: int,
        replica: int,
        priority: int,
        weight: int,
        lane: int,
    ) -> None:
        """Connect a client's channel to a replica."""
        owner, loaded = self.clients.get(client), self.replicas.get(replica)
        if owner is None or loaded is None:
            raise InvalidInput("the model of this channel is not loaded")
        mine = ClientChannel(number, channel, owner.link, priority, weight, lane)
        owner.channels[number] = (mine, loaded)
        loaded.add(mine)

    def unload(self, number: int) -> None:
        """Close a replica and every channel to it."""
        replica = self.replicas.pop(number, None)
        if replica is None:
            return
        for client in self.clients.values():
            for key, (channel, of) in list(client.channels.items()):
                if of is replica:
                    del client.channels[key]
                    self.shares.remove(channel)
                    channel.channel.close()
        if replica in self.queued:
            self.ready.remove(replica)
            self.queued.discard(replica)
        self.go_aside.discard(replica)
        replica.close()

    def close_channel(self, client: int, number: int) -> None:
        """Disconnect a channel."""
        owner = self.clients.get(client)
        found = owner.channels.pop(number, None) if owner is not None else None
        if found is not None:
            channel, replica = found
            self._disconnect(channel, replica)

    def _disconnect(self, channel: ClientChannel, replica: Replica) -> None:
        replica.remove(channel)
        channel.channel.close()
        if replica in self.queued and not replica.pending:
            # Otherwise its delay would begin again and again without gathering
            # anything.
            self.ready.remove(replica)
            self.queued.discard(replica)

    def drop_client(self, client: ClientProcess) -> None:
        """Free the channels of an ended client process.

        Replicas stay loaded as long as the owner of the device wants them.
        """
        if self.clients.pop(client.number, None) is None:
            return
        for channel, replica in client.channels.values():
            self._disconnect(channel, replica)
        client.channels.clear()
        self.links.remove(client.link)
        client.close()

    def __repr__(self) -> str:
        return (
            f"<Connections of {len(self.clients)} clients to {len(self.replicas)} "
            "replicas>"
        )
