// Follows a Linked Data Event Stream by npm's `ldes-client` until it has so many members.
import { intoConfig, replicateLDES } from "ldes-client";

const [url, order, count] = process.argv.slice(1);
// The client itself ends when a server is away.
const patiently = async (...request) => {
  for (;;) {
    const response = await fetch(...request).catch(() => ({ status: 503 }));
    if (response.status < 500) return response;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
};
const config = intoConfig({ url, polling: true, pollInterval: 100, fetch: patiently });
const reader = replicateLDES(config, order).stream({ highWaterMark: 10 }).getReader();
const local = (iri) => iri.replace(/.*#/, "");
const members = [];
while (members.length < Number(count)) {
  const { value } = await reader.read();
  const about = Object.fromEntries(
    value.quads.map((quad) => [local(quad.predicate.value), quad.object.value]),
  );
  members.push([about.object, local(about.type), about.published]);
}
process.stdout.write(JSON.stringify(members), () => process.exit());
