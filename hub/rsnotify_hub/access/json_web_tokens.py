"""JSON Web Tokens as an alternative to the tokens of the configuration.

The claim `rsnotify` of a token holds its grants: `{"publish": ["https://…/"], "admin": false}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import time

import jwt
import msgspec
from msgspec import Struct

#: How long before its `nbf` and `iat` a token is accepted, in seconds: the clock of its issuer may
#: be ahead. Its end has no such leeway.
_LEEWAY = 30


class Claims(Struct, frozen=True):
    """The grants of a token.

    Args:
        publish: Topics, or prefixes of topics, that its bearer may publish on.
        until: When it expires, in seconds since 1970.
    """

    publish: tuple[str, ...] = ()
    admin: bool = False
    until: float = 0.0


@dataclass(eq=False, repr=False)
class JsonWebTokens:
    """Verifies tokens by the given algorithms only; without an issuer, any may have made them."""

    algorithms: Sequence[str]
    key: str
    audience: str
    issuer: str | None

    def claims(self, token: str) -> Claims | None:
        try:
            payload = jwt.decode(
                token,
                self.key,
                algorithms=list(self.algorithms),
                audience=self.audience,
                issuer=self.issuer,
                leeway=_LEEWAY,
                options={"require": ["exp", "aud"]},
            )
            granted = msgspec.convert(payload.get("rsnotify", {}), Claims)
        except (jwt.PyJWTError, msgspec.ValidationError, UnicodeError):
            return None
        until = float(payload["exp"])
        return None if until <= time() else msgspec.structs.replace(granted, until=until)
