"""The `X-Hub-Signature` headers of what is delivered just now (WebSub §7.1)."""

from __future__ import annotations

from rsnotify.format.signatures import signature


class Signatures:
    """Signs a body once for each secret, while it is the body that is delivered.

    Args:
        method: `sha1`, `sha256`, `sha384` or `sha512` (WebSub §7.1.1).
    """

    def __init__(self, method: str) -> None:
        self._method = method
        self._body = b""
        self._headers: dict[str, bytes] = {}

    def header(self, secret: str, body: bytes) -> bytes:
        """Return the header for a secret and a body."""
        if body is not self._body:
            self._body, self._headers = body, {}
        found = self._headers.get(secret)
        if found is None:
            found = f"X-Hub-Signature: {signature(secret, body, self._method)}\r\n".encode()
            self._headers[secret] = found
        return found
