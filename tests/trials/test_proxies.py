"""Proxies with TLS between a hub and all others, which restart."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from pathlib import Path
from ssl import create_default_context

import pytest

from tests.certificates import Authority
from tests.operations.test_proxies import PROXIES, Hub, fence, proxy
from tests.ports import port_for
from tests.reader import TOKEN, with_secrets
from tests.trials.deployment import HUB, SOURCE, Deployment

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", PROXIES)
def test_a_hub_behind_a_proxy(tmp_path: Path, name: str) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.certificate("localhost")
    (tmp_path / "hub.pem").write_text(Path(certificate).read_text() + Path(key).read_text())
    public_port = port_for(authority)
    settings = with_secrets(fence("docs/hub-behind-nginx.md", "toml"))
    settings = settings.replace("https://source.example/data/", SOURCE)
    settings = settings.replace("hub.example", f"localhost:{public_port}")
    environment = {"SSL_CERT_FILE": authority.file, "RSNOTIFY_SOURCE_TOKEN": TOKEN}
    url = f"https://localhost:{public_port}/"
    with (
        ExitStack() as running,
        Deployment(tmp_path / "here", settings, pushes_to=url, environment=environment) as trial,
    ):
        port = int(trial.adapt(HUB).rstrip("/").rpartition(":")[2])
        hub = Hub(tmp_path, port, public_port, create_default_context(cafile=authority.file))
        numbers = count()

        def start() -> None:
            folder = tmp_path / f"proxy{next(numbers)}"
            folder.mkdir()
            running.enter_context(proxy(name, hub, folder))

        start()
        trial.follow_by("websocket")
        trial.survives(running.close, start)
        trial.ends_in_step()
