"""deploy/systemd: the units are valid and hardened, and start what their page says."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from tests.reader import ROOT, fences_of
from tests.running import Running

FOLDER = ROOT / "deploy/systemd"
UNITS = sorted(path.name for path in FOLDER.glob("*.service"))
#: In tenths; a service without hardening has an exposure of 96.
MOST_EXPOSURE = "15"
EXAMPLE = "b23a71dcee9032ed6c26b6cc24561f0ddeb64ff70e3eeadec7cf42fb175fae91"
#: What each prints once it works.
WORKS = {
    "hub": re.compile(r"http://127\.0\.0\.1:\d+/"),
    "source@": re.compile(r"http://127\.0\.0\.1:\d+/"),
    "follow@": re.compile(r"maps"),
    "relay@": re.compile(r"source\.example"),
    "gateway": re.compile(r"http://127\.0\.0\.1:\d+/"),
}


def settings(unit: str) -> dict[str, str]:
    lines = (FOLDER / unit).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")


def configurations() -> dict[str, str]:
    """Return the files that the page shows, by their names."""
    found = {}
    for language, body in fences_of((FOLDER / "README.md").read_text()):
        if language == "toml":
            found[body.partition("\n")[0].removeprefix("# ")] = body
        elif language == "sh":
            found["relay-maps.env"] = body
    return found


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_is_valid_and_hardened(unit: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian: systemd)")
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    copy = tmp_path / unit
    copy.write_text(copy.read_text().replace("/opt/rsnotify/bin/rsnotify", "/bin/true"))
    instance = copy.rename(tmp_path / unit.replace("@", "@one"))
    environment = os.environ | {"SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    for arguments in (
        ("verify", instance),
        ("security", "--offline=true", f"--threshold={MOST_EXPOSURE}", instance),
    ):
        done = subprocess.run(
            ["systemd-analyze", "--no-pager", *arguments],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_starts_with_the_configuration_of_its_page(unit: str, tmp_path: Path) -> None:
    role = unit.removeprefix("rsnotify-").removesuffix(".service")
    state = tmp_path / "state"
    state.mkdir()
    (tmp_path / "maps").mkdir()

    def adapt(text: str) -> str:
        for name, value in {
            "/opt/rsnotify/bin/rsnotify": f"{sys.executable} -m rsnotify",
            "${STATE_DIRECTORY}": str(state),
            "${SOURCE_URL}": "https://source.example/",
            "/etc/rsnotify": str(tmp_path),
            "/var/lib/rsnotify-follow-maps": str(state),
            "/srv": str(tmp_path),
            "%i": "maps",
            # The hub refuses the example.
            EXAMPLE: sha256(b"a token").hexdigest(),
        }.items():
            text = text.replace(name, value)
        return text

    for name, body in configurations().items():
        (tmp_path / name).write_text(adapt(body))
    unit_settings = settings(unit)
    if file := unit_settings.get("EnvironmentFile"):
        assert Path(adapt(file)).exists()
    port = f"RSNOTIFY_{role.rstrip('@').upper()}_PORT"
    command = shlex.split(adapt(unit_settings["ExecStart"]))
    running = Running(command, os.environ | {port: "0"}, tmp_path)
    try:
        running.says(WORKS[role])
        assert any(state.iterdir())
    finally:
        running.stop()
