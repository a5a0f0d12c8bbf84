// Reads a Sitemap, or a Sitemap index with all its parts, from a URL, by two libraries.
import { Readable } from "node:stream";
import { XMLToSitemapItemStream } from "sitemap";
import Sitemapper from "sitemapper";

const url = process.argv[1];

async function bySitemap() {
  const body = Readable.fromWeb((await fetch(url)).body);
  const urls = [];
  for await (const item of body.pipe(new XMLToSitemapItemStream({ logger: false }))) {
    urls.push(item.url);
  }
  return urls;
}

async function bySitemapper() {
  const reader = new Sitemapper({ url, timeout: 30000, returnErrors: true });
  const { sites, errors } = await reader.fetch();
  return { sites, errors };
}

const { sites, errors } = await bySitemapper();
const index = process.argv[2] === "index";
console.log(JSON.stringify({ sitemap: index ? null : await bySitemap(), sitemapper: sites, errors }));
