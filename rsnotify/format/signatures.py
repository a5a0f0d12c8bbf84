"""`X-Hub-Signature`: what shows that a body comes from who knows the secret (WebSub §7.1)."""

from __future__ import annotations

import hmac

#: The methods that there are, the weakest first (WebSub §7.1.1).
METHODS = ("sha1", "sha256", "sha384", "sha512")


def signature(secret: str, body: bytes, method: str = "sha256") -> str:
    """Return the value of the header.

    Args:
        secret: The subscriber's.
        body: What is delivered.
        method: One of `METHODS`.
    """
    return f"{method}={hmac.digest(secret.encode(), body, method).hex()}"


def verify_signature(header: str, secret: str, body: bytes) -> str | None:
    """Return the method of a signature, if it is the right one for this body.

    It takes as long for a wrong one as for the right one (WebSub §8.3).

    Args:
        header: The value of the header, whatever it is.
        secret: The subscriber's.
        body: What was delivered.
    """
    method, _, digits = header.strip().partition("=")
    method = method.lower()
    if method not in METHODS or not digits.isascii():
        return None
    right = signature(secret, body, method)
    return method if hmac.compare_digest(right, f"{method}={digits.lower()}") else None
