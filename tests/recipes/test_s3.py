"""The recipe for S3, with servers that imitate it: needs boto3, and moto or npm's s3rver."""

from __future__ import annotations

import os
import sys
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from tests.recipes.stores import Aggregator, Store, course

pytestmark = pytest.mark.slow


class Moto(Store):
    """Keeps everything in memory."""

    def __init__(self, folder: Path) -> None:
        boto3 = pytest.importorskip("boto3")
        super().__init__(folder)
        self.s3: Any = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            aws_access_key_id="S3RVER",
            aws_secret_access_key="S3RVER",
            region_name="us-east-1",
        )
        self.s3.create_bucket(Bucket="copy")

    def command(self) -> list[str]:
        pytest.importorskip("moto")
        return [sys.executable, "-m", "moto.server", "-p", str(self.port)]

    def contents(self) -> dict[str, str]:
        try:
            pages = list(self.s3.get_paginator("list_objects_v2").paginate(Bucket="copy"))
        except self.s3.exceptions.ClientError:  # s3rver lists no object that is being deleted
            return {}
        items = [item for page in pages for item in page.get("Contents", [])]
        return {item["Key"].replace("/", "://", 1): item["ETag"].strip('"') for item in items}

    def expected(self, content: bytes) -> str:
        return md5(content).hexdigest()


class S3rver(Moto):
    """Keeps everything in files."""

    is_durable = True

    def command(self) -> list[str]:
        program = Path(os.environ.get("RSNOTIFY_NODE", "/")) / "node_modules/.bin/s3rver"
        if not program.exists():
            pytest.skip("needs `npm install s3rver` in the folder that RSNOTIFY_NODE names")
        return [
            str(program),
            "-d",
            str(self.folder / "s3"),
            "-p",
            str(self.port),
            "-a",
            "127.0.0.1",
        ]


@pytest.mark.parametrize("kind", [Moto, S3rver])
def test_a_bucket_is_a_copy(tmp_path: Path, kind: type[Moto]) -> None:
    store = kind(tmp_path)
    with course(tmp_path, store, "txt", "{number} in version {version}") as trial:
        known = {
            "https://source.example/": trial.source.url,
            "https://s3.example/": store.proxy.url,
        }
        trial.aggregator = Aggregator("s3.md", "to_s3.py", tmp_path, known)

        def damage(missing: str, changed: str) -> None:
            store.s3.delete_object(Bucket="copy", Key=missing.replace("://", "/", 1))
            for key in (changed.replace("://", "/", 1), "foreign"):
                store.s3.put_object(Bucket="copy", Key=key, Body=b"201 in version 1")

        trial.run(damage, "--read-hashes")
