"""Write the screenshots of the documentation: those whose pages have changed, or those named.

    python -m tests.screenshots FOLDER [NAME ...]

Figures on a page differ at each run, so pictures are not compared. `taken.json` has a hash of the
files that make each page. Text is in Inter if that font is installed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from tests.browser import connect
from tests.chromium import running_chromium
from tests.screenshots import dashboard, demo, fleet, terminal

_ROOT = Path(__file__).parents[2]
_TAKEN = Path(__file__).with_name("taken.json")
_FONTS = """\
<fontconfig>
  <include>/etc/fonts/fonts.conf</include>
  <match>
    <test name="family"><string>sans-serif</string></test>
    <edit name="family" mode="prepend" binding="strong"><string>Inter</string></edit>
  </match>
</fontconfig>
"""
_MODULES = {"demo": demo, "dashboard": dashboard, "fleet": fleet, "terminal": terminal}


def _hash(module: ModuleType) -> str:
    found = sha256()
    for place in (*module.SHOWS, str(module.__file__)):
        for path in sorted([_ROOT / place, *(_ROOT / place).rglob("*")]):
            if path.is_file():
                found.update(path.read_bytes())
    return found.hexdigest()


async def _take(chromium: str, folder: Path, scratch: Path, names: list[str]) -> None:
    taken = json.loads(_TAKEN.read_text())
    hashes = {name: _hash(module) for name, module in _MODULES.items()}
    async with connect(chromium) as browser:
        for name in names or [name for name in _MODULES if taken.get(name) != hashes[name]]:
            await _MODULES[name].pictures(browser, folder, scratch)
            taken[name] = hashes[name]
            _TAKEN.write_text(json.dumps(taken, indent=2) + "\n")


async def main(folder: Path, names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        (scratch / "fonts.conf").write_text(_FONTS)
        os.environ["FONTCONFIG_FILE"] = str(scratch / "fonts.conf")
        with running_chromium() as chromium:
            await _take(chromium, folder, scratch, names)


if __name__ == "__main__":
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= _MODULES.keys():
        sys.exit(f"usage: python -m tests.screenshots FOLDER [{'] ['.join(_MODULES)}]")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends Chromium, too
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
