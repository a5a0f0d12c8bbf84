"""Normalizes URIs. Two URIs with the same normal form identify the same resource.

Normalization follows RFC 3986 §6.2.2 and §6.2.3: scheme and host in lower case, encoded octets in
upper case, unreserved characters decoded, no dot segments, no default or empty port, and `/` as the
path of a bare authority. Before that, an IRI is mapped to a URI (RFC 3987 §3.1), its host with
IDNA, and characters that are invalid in a URI, such as spaces, are encoded. A `%` that does not
begin an encoded octet is encoded, too.

All other differences count: reserved characters and their encodings (`/` and `%2F`), the case of
the path, an empty query and no query, precomposed and decomposed characters, `http` and `https`.

The normal form is used only for comparisons. Requests, digests and documents contain URIs exactly
as the Source wrote them. Libraries differ: yarl drops an empty query, and rfc3986 neither decodes
`%7E` nor drops a default port.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

#: Characters that are valid in a URI in addition to unreserved ones, for `urllib.parse.quote`.
URI_CHARACTERS = "%/:?#[]@!$&'()*+,;="
_DEFAULT_PORTS = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21"}
_UNRESERVED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")
_ALLOWED = r"A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-"
#: The encoded octets that are not unreserved characters.
_OCTET = "%(?:[0189A-F][0-9A-F]|2[0-9A-CF]|3[A-F]|[46]0|5[B-E]|7[BCDF])"
# Nearly all URIs have this form, and are normal unless a segment begins with a dot.
_HOST = "[a-z0-9.-]++"
_NORMAL = re.compile(
    rf"http(?:://{_HOST}(?::(?!80/)[1-9][0-9]*+)?|s://{_HOST}(?::(?!443/)[1-9][0-9]*+)?)"
    rf"/[{_ALLOWED}]*+(?>{_OCTET}[{_ALLOWED}]*+)*+"
)
_PARTS = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]*+):(?://([^/?#]*+))?([^?#]*+)(\?[^#]*+)?(#.*+)?", re.DOTALL
)
_AUTHORITY = re.compile(r"((?:.*@)?)(\[[^\]]*\]|[^:]*)(?::([0-9]*))?", re.DOTALL)
_CODED = re.compile(rf"%[0-9A-Fa-f]{{2}}|%|[^%{_ALLOWED}]+")
_HOST_NAME = re.compile(r"[a-z0-9._-]+")
_ENCODED_TEXT = re.compile("(?:%[89A-F][0-9A-F])+")
#: Characters that IDNA 2008 keeps, but IDNA 2003 replaces or removes.
_DEVIATING = re.compile("[ßς\u200c\u200d]")
_MAX_HOST_LENGTH = 255


def normalize(uri: str) -> str:
    """Return the normal form of a URI or IRI. A string without a scheme is returned unchanged."""
    if _NORMAL.fullmatch(uri) is not None and "/." not in uri:
        return uri
    parts = _PARTS.fullmatch(uri)
    if parts is None:
        return uri
    scheme, authority, *rest = parts.groups("")
    path, query, fragment = map(normalize_encoding, rest)
    scheme = scheme.lower()
    if parts[2] is None:
        return f"{scheme}:{path}{query}{fragment}"
    path = _without_dot_segments(path) or "/"
    return f"{scheme}://{_normal_authority(scheme, authority)}{path}{query}{fragment}"


def normalize_encoding(part: str) -> str:
    """Return a component of a URI with normalized percent-encoding."""
    return _CODED.sub(_normal_octets, part)


def _normal_octets(match: re.Match[str]) -> str:
    found = match[0]
    if found[0] != "%":
        return quote(found.encode(errors="surrogatepass"))
    if found == "%":
        return "%25"
    character = chr(int(found[1:], 16))
    return character if character in _UNRESERVED else found.upper()


def normalize_beginning(uri: str) -> str:
    """Return the common prefix of the normal forms of all URIs that begin with `uri`.

    `uri` may be a pattern with `*` for any characters. Dot segments are kept, because longer
    segments may begin with dots.
    """
    scheme, mark, rest = uri.partition("://")
    authority, slash, path = rest.partition("/")
    path = normalize_encoding(path)
    if not mark or "*" in scheme:
        return normalize_encoding(uri)
    if not slash or "*" in authority:
        return f"{scheme.lower()}://{authority.lower()}{slash}{path}"
    return f"{scheme.lower()}://{_normal_authority(scheme.lower(), authority)}/{path}"


def _normal_authority(scheme: str, authority: str) -> str:
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        return normalize_encoding(authority)
    user, host, port = parts.groups("")
    port = port.lstrip("0") or port[:1]
    port = "" if port in ("", _DEFAULT_PORTS.get(scheme)) else f":{port}"
    return f"{normalize_encoding(user)}{_normal_host(host)}{port}"


def _normal_host(host: str) -> str:
    host = normalize_encoding(host).lower()
    host = _CODED.sub(lambda octet: octet[0].upper(), host)
    if "%" not in host:
        return host
    name = _ENCODED_TEXT.sub(lambda text: unquote(text[0]), host)
    if len(name) > _MAX_HOST_LENGTH or _DEVIATING.search(name):
        return host
    try:
        encoded = name.encode("idna").decode().lower()
    except UnicodeError:
        return host
    return encoded if _HOST_NAME.fullmatch(encoded) else host


def _without_dot_segments(path: str) -> str:
    """Return an absolute path without dot segments (RFC 3986 §5.2.4)."""
    if "/." not in path:
        return path
    kept: list[str] = []
    segments = path.split("/")[1:]
    for segment in segments:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)
