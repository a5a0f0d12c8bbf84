"""XML attacks on topics of other content; `tests/security/documents.toml` has fragments."""

from __future__ import annotations

import asyncio

import pytest

from tests.hub.attacks.helpers import obliging, raw_server
from tests.hub.helpers import TOPIC, Callback, Client, fragment
from tests.wild.test_hostile_documents import DATA, ENTRY, HEAD

SITEMAP = "http://www.sitemaps.org/schemas/sitemap/0.9"
LAUGHS = '<!ENTITY a "ha">' + "".join(
    f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(12)
)
#: The text between `<!DOCTYPE root` and the root element.
DECLARATIONS = {
    "billion laughs": f" [{LAUGHS}]>",
    "external entity": ' [<!ENTITY m SYSTEM "{url}">]>',
    "a file": ' [<!ENTITY m SYSTEM "file:///etc/passwd">]>',
    "parameter entity": ' [<!ENTITY % m SYSTEM "{url}"> %m;]>',
    "default attribute": f' [<!ATTLIST root xmlns CDATA "{SITEMAP}">]>',
    "entity for the namespace": f' [<!ENTITY m "{SITEMAP}">]>',
    "quadratic blow-up": f' [<!ENTITY m "{"x" * 50_000}">]>',
}


def sitemap(attributes: str = "") -> bytes:
    return f'<urlset xmlns="{SITEMAP}" {attributes}>'.encode()


def document(declarations: str, root: str, namespace: str, url: str) -> bytes:
    head = f"<!DOCTYPE {root}{declarations.replace('{url}', url)}" if declarations else ""
    return f'<?xml version="1.0"?>{head}<{root} xmlns="{namespace}">&m;</{root}>'.encode()


@pytest.mark.parametrize(("root", "namespace"), [("topic", "urn:x"), ("topic", "&m;")])
async def test_declarations_are_refused(hub: Client, root: str, namespace: str):
    async with raw_server(obliging) as victim:
        for name, declarations in DECLARATIONS.items():
            status, reason = await hub.publish(
                document(declarations, root, namespace, victim.url())
            )
            assert (status, "secret" in reason, "root:" in reason) == (400, False, False), name
        assert victim.connections == 0
    await hub.accepted(fragment(0, 1))


@pytest.mark.parametrize("root", ["urlset", "topic"])
async def test_a_public_identifier_is_not_fetched(hub: Client, root: str):
    async with raw_server(obliging) as victim:
        system = f' PUBLIC "-//W3C//DTD XHTML 1.0 Strict//EN" "{victim.url()}">'
        namespace = SITEMAP if root == "urlset" else "urn:x"
        body = document(system, root, namespace, "").replace(b"&m;", b"")
        status, _ = await hub.publish(body)
        assert status == (400 if root == "urlset" else 202)
        assert victim.connections == 0


@pytest.mark.parametrize(
    "inner",
    [
        '<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="{url}"/>',
        '<i:include xmlns:i="http://www.w3.org/2001/XInclude" href="file:///etc/passwd"/>',
        '<x xmlns:i="http://www.w3.org/2001/XMLSchema-instance" i:schemaLocation="urn:x {url}"/>',
        '<?xml-stylesheet href="{url}"?>',
    ],
)
async def test_references_in_a_document_are_passed_on_and_not_followed(
    hub: Client, callback: Callback, inner: str
):
    async with raw_server(obliging) as victim:
        body = f'<topic xmlns="urn:x">{inner.replace("{url}", victim.url())}</topic>'.encode()
        await hub.subscribe(callback)
        await hub.accepted(body)
        assert (await callback.delivery())[1] == body
        assert victim.connections == 0


IMAGE = '<image:image xmlns:image="urn:i"><image:loc>a:b</image:loc></image:image>'
FOREIGN = "<rs:md xmlns:x='urn:x' x:y='z'/>"
#: Documents that take long to parse and have no entries, so that a ping finds nothing new.
EMPTY = [
    sitemap(" ".join(f"a{n}=''" for n in range(50_000))) + b"</urlset>",
    sitemap('a="' + "&amp;" * 200_000 + '"') + b"</urlset>",
]
#: Documents that take long to parse, or cannot be parsed.
COSTLY = [
    b"<a>" * 300_000,
    sitemap() + b"<a>" * 100_000,
    sitemap() + b"<url/>" * 100_000 + b"</urlset>",
    b"<" + b"a" * 1_000_000,
    b"<a b='" + b"x" * 900_000,
    b"\xff" * 1000,
    b"\x00" * 1000,
    b"",
    f"{HEAD}<url>{' ' * 300}".encode(),
    f"{HEAD}<url>{' ' * 900_000}".encode(),
    f"{HEAD}\n{' ' * 8}<url>\n{' ' * 16}{IMAGE}\n{' ' * 8}</url></urlset>".encode(),
    f"{HEAD}<url>{' ' * 300}<!-- -->{' ' * 300}</url></urlset>".encode(),
    f"{HEAD}<url><loc>{'x' * 900_000}".encode(),
    f"{HEAD}{ENTRY}<rs:md{' ' * 900_000}".encode(),
    f"{HEAD}{ENTRY}{FOREIGN * 25_000}</url></urlset>".encode(),
    f'{HEAD}{ENTRY}<rs:ln rel="a" href="{DATA}"/>'.encode(),
    f"{HEAD}{ENTRY}<lastmod>{'&#48;' * 150_000}</lastmod></url></urlset>".encode(),
    f"{HEAD}{'<url><loc>a:b</loc></url>' * 30_000}</urlset>".encode(),
]


async def test_a_document_that_is_costly_to_parse_does_not_block_the_hub(
    hub: Client, callback: Callback
):
    other = TOPIC + "?other"
    socket = await hub.listen(topic=other)
    callback.headers = {"Content-Type": "application/xml"}
    for second, body in enumerate([*EMPTY, *COSTLY]):
        callback.document = body
        ping = hub.form(mode="publish", url=f"{callback.url}?{second}")
        answers = asyncio.gather(hub.publish(body), ping)
        sent = fragment(second, second + 1)
        await hub.accepted(sent, topic=other)
        assert await socket.receive_str() == sent.decode()
        assert [status for status, _ in await answers] == [400, 202 if body in EMPTY else 502]


async def test_a_deep_document_of_other_xml_is_accepted(hub: Client):
    await hub.accepted(b"<a>" * 100_000 + b"</a>" * 100_000)
