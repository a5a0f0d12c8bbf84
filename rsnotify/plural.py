"""Counted nouns in messages."""

from __future__ import annotations


def counted(number: int, thing: str, things: str = "") -> str:
    """Return a number with its noun: `1 resource`, `5,000 resources`.

    Args:
        number: The number.
        thing: The noun in the singular.
        things: The plural, where it is not the singular with an `s` added.
    """
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"
