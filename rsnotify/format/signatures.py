"""`X-Hub-Signature`, which proves that the sender of a body knows the secret (WebSub §7.1)."""

from __future__ import annotations

import hmac

#: The recognised methods, the weakest first (WebSub §7.1.1).
METHODS = ("sha1", "sha256", "sha384", "sha512")


def signature(secret: str, body: bytes, method: str = "sha256") -> str:
    """Return the value of the header for a body; the method is one of `METHODS`."""
    return f"{method}={hmac.digest(secret.encode(), body, method).hex()}"


def verify_signature(header: str, secret: str, body: bytes) -> str | None:
    """Return the method of a valid signature; None if the signature is invalid.

    The comparison takes constant time (WebSub §8.3).
    """
    method, _, digits = header.strip().partition("=")
    method = method.lower()
    if method not in METHODS or not digits.isascii():
        return None
    right = signature(secret, body, method)
    return method if hmac.compare_digest(right, f"{method}={digits.lower()}") else None
