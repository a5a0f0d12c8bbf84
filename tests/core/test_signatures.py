"""`X-Hub-Signature` (WebSub §7.1)."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rsnotify.format.signatures import METHODS, SigningKey, signature, verify_signature


def test_the_signature_is_the_hmac_of_the_body() -> None:
    # RFC 4231 §4.3
    assert signature("Jefe", b"what do ya want for nothing?") == (
        "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    )


@given(st.text(max_size=60), st.binary(max_size=200), st.sampled_from(METHODS))
def test_a_valid_signature_is_recognised_with_its_method(
    secret: str, body: bytes, method: str
) -> None:
    header = signature(secret, body, method)
    assert verify_signature(header, secret, body) == method
    assert verify_signature(f" {header.upper()} ", secret, body) == method
    assert verify_signature(header, secret + "x", body) is None
    assert verify_signature(header, secret, body + b"x") is None


@given(st.text(max_size=300), st.lists(st.binary(max_size=200)), st.sampled_from(METHODS))
@example("longer than a block " * 20, [b"body"], "sha256")
@example("x" * 64, [b"body"], "sha256")
def test_a_prepared_secret_makes_the_same_signatures(
    secret: str, bodies: list[bytes], method: str
) -> None:
    key = SigningKey(secret, method)
    for body in bodies:
        assert key.sign(body) == signature(secret, body, method)


@given(st.text())
def test_anything_else_signs_nothing(header: str) -> None:
    assert verify_signature(header, "secret", b"body") is None


@pytest.mark.parametrize(
    "header",
    ["", "sha256", "sha256=", "=", "md5=900150983cd24fb0d6963f7d28e17f72", "sha256=\u0660"],
)
def test_a_signature_with_an_unknown_method_is_invalid(header: str) -> None:
    assert verify_signature(header, "secret", b"body") is None


def test_the_signature_of_one_method_is_not_that_of_another() -> None:
    digits = signature("secret", b"body", "sha1").partition("=")[2]
    assert verify_signature(f"sha256={digits}", "secret", b"body") is None
