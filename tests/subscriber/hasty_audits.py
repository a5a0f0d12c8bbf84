"""`python -m rsnotify`, whose audits compare differences again at once, not after a second."""

from __future__ import annotations

from rsnotify.runtime.command_line import main
from rsnotify_subscriber import audit, repair

if __name__ == "__main__":
    for command in (audit, repair):
        assert command.__kwdefaults__ is not None
        command.__kwdefaults__["pause"] = 0.0
    main()
