"""JSON Web Tokens as an alternative to tokens of the configuration.

A token's claim `rsnotify` says what it grants: `{"publish": ["https://…/"], "admin": false}`.
"""

from __future__ import annotations

from collections.abc import Sequence

import jwt
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from msgspec import Struct

#: How far the clocks of the hub and of who made the token may differ, in seconds.
_LEEWAY = 30


def is_key(text: str, algorithm: str) -> bool:
    """Tell whether a key is one that an algorithm verifies with."""
    try:
        jwt.get_algorithm_by_name(algorithm).prepare_key(text)
    except (jwt.PyJWTError, ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return True


class Claims(Struct, frozen=True):
    """What a token grants.

    Args:
        publish: Topics, or prefixes of them, that its bearer may publish on.
        admin: Whether its bearer may see and change everything.
        until: When it ends, in seconds since 1970.
    """

    publish: tuple[str, ...] = ()
    admin: bool = False
    until: float = 0.0


class JsonWebTokens:
    """Verifies tokens.

    Args:
        algorithms: Those that are accepted, whatever the token says.
        key: The public key, or the secret of an HS algorithm.
        audience: The `aud` that a token must have.
        issuer: The `iss` that it must have; None for any.
    """

    def __init__(
        self, algorithms: Sequence[str], key: str, audience: str, issuer: str | None
    ) -> None:
        self._algorithms = algorithms
        self._key = key
        self._audience = audience
        self._issuer = issuer

    def claims(self, token: str) -> Claims | None:
        """Return what a token grants; None if it is not valid."""
        try:
            payload = jwt.decode(
                token,
                self._key,
                algorithms=list(self._algorithms),
                audience=self._audience,
                issuer=self._issuer,
                leeway=_LEEWAY,
                options={"require": ["exp", "aud"]},
            )
            granted = msgspec.convert(payload.get("rsnotify", {}), Claims)
        except (jwt.PyJWTError, msgspec.ValidationError, UnicodeError):
            return None
        return msgspec.structs.replace(granted, until=float(payload["exp"]) + _LEEWAY)
