"""Makes ZIP packages that lie: every field can differ from what is right, in either header."""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from typing import Any

from msgspec import Struct

_LOCAL, _CENTRAL = b"PK\x03\x04", b"PK\x01\x02"
_MOST = 0xFFFFFFFF


class HeaderFields(Struct, forbid_unknown_fields=True, frozen=True):
    """The fields of a header that differ from the right ones."""

    name: str | None = None
    flags: int | None = None
    method: int | None = None
    crc: int | None = None
    csize: int | None = None
    size: int | None = None
    extra: str | None = None
    extra_length: int | None = None

    def given(self) -> dict[str, Any]:
        return {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not None
        }


class Member(HeaderFields, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A member.

    Args:
        real: The method by which the data is compressed, if it differs from the stated one.
        at: The offset that the directory states.
        repeat: How often it is there.
    """

    name: str  # type: ignore[assignment]
    text: str = ""
    zeros: int = 0
    nested: bool = False
    real: int | None = None
    mode: int = 0o100644
    at: int | None = None
    repeat: int = 1
    local: HeaderFields = HeaderFields()
    central: HeaderFields = HeaderFields()

    def content(self) -> bytes:
        if self.nested:
            return make_zip([Member(name="x", text="nested")])
        return bytes(self.zeros) or self.text.encode()


def make_zip(
    members: list[Member],
    *,
    before: str = "",
    comment: str = "",
    zip64: bool = False,
    directory_size: int | None = None,
) -> bytes:
    """Return a package; without any lies, one that every program can read."""
    data, directory, count = before.encode(), b"", 0
    for member in (one for one in members for _ in range(one.repeat)):
        content = member.content()
        packed = _compressed(content, member)
        fields = {"name": member.name, "flags": 0, "method": 8, "crc": zlib.crc32(content)}
        fields |= {"csize": len(packed), "size": len(content), "extra": "", "extra_length": None}
        fields |= {name: value for name, value in member.given().items() if name in fields}
        offset = len(data) - len(before) if member.at is None else member.at
        data += _local(**{**fields, **member.local.given()}) + packed
        if fields["flags"] & 8:
            data += struct.pack(
                "<4s3L", b"PK\x07\x08", fields["crc"], fields["csize"], fields["size"]
            )
        directory += _central(offset, member.mode, **{**fields, **member.central.given()})
        count += 1
    start, size = len(data) - len(before), len(directory)
    stated = size if directory_size is None else directory_size
    data += directory
    if zip64:
        record = struct.pack(
            "<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, start
        )
        locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, len(data), 1)
        data += record + locator
        start = stated = _MOST
        count = 0xFFFF
    return (
        data
        + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, stated, start, len(comment))
        + comment.encode()
    )


def _compressed(content: bytes, member: Member) -> bytes:
    match member.method if member.real is None else member.real:
        case 0:
            return content
        case 12:
            return bz2.compress(content)
        case 14:
            filters = [{"id": lzma.FILTER_LZMA1}]
            properties = struct.pack("<BBHBL", 9, 4, 5, 0x5D, 1 << 23)
            return properties + lzma.compress(content, lzma.FORMAT_RAW, filters=filters)
    packer = zlib.compressobj(9, wbits=-15)
    return packer.compress(content) + packer.flush()


def _local(*, name: str, extra: str, extra_length: int | None, **fields: int) -> bytes:
    more = bytes.fromhex(extra)
    return struct.pack(
        "<4s5H3L2H", _LOCAL, 20, fields["flags"], fields["method"], 0, 33, fields["crc"],
        fields["csize"], fields["size"], len(name.encode()),
        len(more) if extra_length is None else extra_length,
    ) + name.encode() + more  # fmt: skip


def _central(
    offset: int, mode: int, *, name: str, extra: str, extra_length: int | None, **fields: int
) -> bytes:
    more = bytes.fromhex(extra)
    return struct.pack(
        "<4s6H3L5H2L", _CENTRAL, 0x0314, 20, fields["flags"], fields["method"], 0, 33,
        fields["crc"], fields["csize"], fields["size"], len(name.encode()),
        len(more) if extra_length is None else extra_length, 0, 0, 0, mode << 16, offset,
    ) + name.encode() + more  # fmt: skip


class PackageVector(Struct, forbid_unknown_fields=True):
    """A vector of `packages.toml`, where the fields are explained."""

    why: str
    outcome: str
    members: list[Member] = []
    reported: bool = False
    path: str = "/resources/0"
    before: str = ""
    comment: str = ""
    zip64: bool = False
    directory_size: int | None = None
    cut: int = 0
    manifest: str | None = None
    manifest_zeros: int = 0
    instead: str | None = None

    def made(self, manifest: bytes) -> bytes:
        """Return the package, with a manifest if the vector has no other."""
        if self.instead is not None:
            return self.instead.encode()
        text = manifest.decode() if self.manifest is None else self.manifest
        own = Member(name="manifest.xml", text=text, zeros=self.manifest_zeros)
        named = [own] if text or self.manifest_zeros else []
        data = make_zip(
            [*named, *self.members],
            before=self.before,
            comment=self.comment,
            zip64=self.zip64,
            directory_size=self.directory_size,
        )
        return data[: len(data) - self.cut]
