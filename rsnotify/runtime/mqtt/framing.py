"""How long MQTT packets are, watched while they arrive: no broker may fill the memory."""

from __future__ import annotations


class PacketTooLong(ValueError):
    """A packet is longer than what is taken, or its length is none."""


class PacketLengths:
    """Follows the packets of a stream of bytes.

    A packet is a byte, its remaining length in one to four bytes of seven bits each, the lowest
    first, and so many bytes (MQTT 5 §2.1).

    Args:
        most: The longest remaining length that is taken.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._header = bytearray()
        self._left = 0

    def feed(self, data: bytes) -> None:
        """Look at the next bytes of the stream.

        Raises:
            PacketTooLong: A packet begins in them that is not taken.
        """
        position = 0
        while position < len(data):
            if self._left:
                passed = min(self._left, len(data) - position)
                self._left -= passed
                position += passed
            else:
                self._header.append(data[position])
                position += 1
                self._end_of_header()

    def _end_of_header(self) -> None:
        if len(self._header) == 1:
            return
        if self._header[-1] & 0x80:
            if len(self._header) == 5:
                raise PacketTooLong
            return
        self._left = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(self._header[1:]))
        self._header.clear()
        if self._left > self._most:
            raise PacketTooLong
