"""What is checked of the attributes that say what a set is (docs/audit.md)."""

from __future__ import annotations

from rsnotify.format.digest import AUDIT_NS, FORMS
from rsnotify.validation.elements import Element
from rsnotify.validation.entries import Report
from rsnotify.validation.values import shown


def check_audit(md: Element, broken: Report) -> None:
    """Check what the `rs:md` of a document says of the set.

    Args:
        md: It.
        broken: Is told of each rule that is broken.
    """
    said = {name: md.attributes.get(f"{AUDIT_NS} {name}") for name in FORMS}
    missing = [name for name, value in said.items() if value is None]
    if len(missing) == len(said):
        return
    if missing:
        broken("audit-incomplete", md.line, "rs:md", ", ".join(missing))
    for name, value in said.items():
        if value is not None and FORMS[name].fullmatch(value) is None:
            broken("audit-value", md.line, "rs:md", shown(name, value))
    if "until" not in md.attributes:
        broken("audit-until-missing", md.line, "rs:md")
