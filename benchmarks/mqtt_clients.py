"""Many MQTT subscribers in a separate process, with the least possible cost for the broker.

`mqtt_clients.py PORT TOPIC COUNT` opens COUNT connections, subscribes each with QoS 1, and prints
`ready`. Then for each line on its standard input, a number, it prints `done` once all together have
received and acknowledged so many new messages.
"""

from __future__ import annotations

import selectors
import socket
import struct
import sys
import time

_TICK = 0.005
_PUBLISH = 0x30


def _string(text: str) -> bytes:
    return struct.pack("!H", len(text)) + text.encode()


def _packet(kind: int, body: bytes) -> bytes:
    assert len(body) < 128
    return bytes([kind, len(body)]) + body


class MqttClient:
    """A connection that acknowledges what it receives."""

    def __init__(self, port: int, topic: str, name: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        connect = _string("MQTT") + b"\x04\x02\x00\x00" + _string(name)
        self.socket.sendall(_packet(0x10, connect))
        self.socket.sendall(_packet(0x82, b"\x00\x01" + _string(topic) + b"\x01"))
        file = self.socket.makefile("rb", buffering=0)
        assert file.read(4) == b"\x20\x02\x00\x00"
        assert file.read(5) == b"\x90\x03\x00\x01\x01"
        self.socket.setblocking(False)
        self._got = b""

    def receive(self) -> int:
        """Acknowledge what has arrived; return the number of messages that were not retained."""
        self._got += self.socket.recv(1 << 18)
        acknowledgements, live = [], 0
        while (size := self._size()) is not None:
            packet, self._got = self._got[: sum(size)], self._got[sum(size) :]
            if packet[0] & 0xF0 == _PUBLISH and packet[0] & 0x06:
                start = size[0]
                name = start + 2 + int.from_bytes(packet[start : start + 2])
                acknowledgements.append(b"\x40\x02" + packet[name : name + 2])
                live += not packet[0] & 0x01
        self.socket.send(b"".join(acknowledgements))
        return live

    def _size(self) -> tuple[int, int] | None:
        """Return the sizes of head and rest of the next packet, if it is complete."""
        length = 0
        for number, byte in enumerate(self._got[1:5]):
            length |= (byte & 0x7F) << 7 * number
            if byte < 0x80:
                head = number + 2
                return (head, length) if len(self._got) >= head + length else None
        return None


def main(port: int, topic: str, count: int) -> None:
    selector = selectors.EpollSelector()
    for number in range(count):
        client = MqttClient(port, topic, f"bench{number}")
        selector.register(client.socket, selectors.EVENT_READ, client)
    print("ready", flush=True)
    got = 0
    for line in sys.stdin:
        while got < int(line):
            time.sleep(_TICK)  # as in websocket_clients
            for key, _ in selector.select(0):
                got += key.data.receive()
        got -= int(line)
        print("done", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
