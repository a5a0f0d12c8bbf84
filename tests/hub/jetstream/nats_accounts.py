"""An operator of NATS with an account, and credentials of its users, as `nsc` makes them."""

from __future__ import annotations

import base64
import json
import os
import time
from typing import Any

import nkeys

_LIMITS = "subs data payload imports exports conn leaf mem_storage disk_storage streams consumer"
_UNLIMITED = dict.fromkeys(_LIMITS.split(), -1)


def new_pair(kind: int = nkeys.PREFIX_BYTE_USER) -> nkeys.KeyPair:
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), kind))


def public(pair: nkeys.KeyPair) -> str:
    return pair.public_key.decode()


class Operator:
    """An operator.

    Attributes:
        settings: The lines of the configuration of a server that trusts it.
    """

    def __init__(self) -> None:
        self._pair = new_pair(nkeys.PREFIX_BYTE_OPERATOR)
        self._account = new_pair(nkeys.PREFIX_BYTE_ACCOUNT)
        system = new_pair(nkeys.PREFIX_BYTE_ACCOUNT)
        accounts = {
            public(self._account): self._account_token(self._account, _UNLIMITED),
            public(system): self._account_token(system, {}),
        }
        preloaded = ", ".join(f"{name}: {token}" for name, token in accounts.items())
        claims = {"type": "operator", "version": 2}
        self.settings = "\n".join(
            (
                f"operator: {_token(self._pair, self._pair, claims)}",
                f"system_account: {public(system)}",
                "resolver: MEMORY",
                f"resolver_preload: {{ {preloaded} }}",
            )
        )

    def _account_token(self, account: nkeys.KeyPair, limits: dict[str, int]) -> str:
        claims = {"limits": limits | {"wildcards": True}, "type": "account", "version": 2}
        return _token(self._pair, account, claims)

    def credentials(self, *, expires: int | None = None) -> str:
        """Return the text of the credentials file of a new user."""
        user = new_pair()
        unlimited = {"pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
        claims = unlimited | {"type": "user", "version": 2}
        token = _token(self._account, user, claims, expires)
        return (
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n"
            "------END USER NKEY SEED------\n"
        )


def _token(
    issuer: nkeys.KeyPair, subject: nkeys.KeyPair, nats: dict[str, Any], expires: int | None = None
) -> str:
    claims: dict[str, Any] = {
        "jti": os.urandom(16).hex(),
        "iat": int(time.time()) - 60,
        "iss": public(issuer),
        "name": "test",
        "sub": public(subject),
        "nats": nats,
    }
    if expires is not None:
        claims["exp"] = expires
    header = {"typ": "JWT", "alg": "ed25519-nkey"}
    signed = f"{_encoded(json.dumps(header).encode())}.{_encoded(json.dumps(claims).encode())}"
    return f"{signed}.{_encoded(issuer.sign(signed.encode()))}"


def _encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")
