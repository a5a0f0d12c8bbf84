// Writes a Sitemap index and its parts into a folder.
import { createWriteStream, statSync } from "node:fs";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { SitemapAndIndexStream, SitemapStream } from "sitemap";

const [folder, url, limit, ...names] = process.argv.slice(1);
const index = new SitemapAndIndexStream({
  limit: Number(limit),
  getSitemapStream: (number) => {
    const stream = new SitemapStream({ hostname: url });
    const file = stream.pipe(createWriteStream(`${folder}/sitemap-${number}.xml`));
    return [new URL(`sitemap-${number}.xml`, url).toString(), stream, file];
  },
});
// Not the present: this process may start seconds after the files were written.
const lastmod = (name) => statSync(`${folder}/${name}`).mtime.toISOString();
const entries = names.map((name) => ({ url: name, lastmod: lastmod(name) }));
await pipeline(Readable.from(entries), index, createWriteStream(`${folder}/sitemap.xml`));
console.log(JSON.stringify(entries.length));
