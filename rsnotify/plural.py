"""Numbers of things, as people write them."""

from __future__ import annotations


def counted(number: int, thing: str, things: str = "") -> str:
    """Return a number with its noun: `1 resource`, `5,000 resources`.

    Args:
        number: How many.
        thing: The noun, for one.
        things: The noun for any other number; by default with an `s` added.
    """
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"
