"""The lengths of incoming MQTT packets, checked early: no broker may exhaust the memory."""

from __future__ import annotations

from rsnotify.errors import RsnotifyError


class PacketTooLong(RsnotifyError, ValueError):
    """A packet is longer than allowed, or its length is malformed."""


class PacketLengths:
    """Follows the packet boundaries in a stream of bytes.

    A packet has a fixed header (a byte, then the remaining length in one to four bytes of seven
    bits each, the lowest first), and as many bytes as that length says (MQTT 5 §2.1).
    """

    def __init__(self, max_remaining: int) -> None:
        self._max_remaining = max_remaining
        self._header = bytearray()
        self._remaining = 0

    def feed(self, data: bytes) -> None:
        """Check the next bytes of the stream; PacketTooLong if such a packet begins in them."""
        position = 0
        while position < len(data):
            if self._remaining:
                passed = min(self._remaining, len(data) - position)
                self._remaining -= passed
                position += passed
            else:
                self._header.append(data[position])
                position += 1
                self._parse_header()

    def _parse_header(self) -> None:
        if len(self._header) == 1:
            return
        if self._header[-1] & 0x80:
            if len(self._header) == 5:
                raise PacketTooLong
            return
        length = self._header[1:]
        self._remaining = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(length))
        self._header.clear()
        if self._remaining > self._max_remaining:
            raise PacketTooLong
