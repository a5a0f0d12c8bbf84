// npm's `aedes` as a broker on a port of loopback.
import { Aedes } from "aedes";
import { createServer } from "node:net";

const [port] = process.argv.slice(1);
const broker = await Aedes.createBroker();
createServer(broker.handle).listen(Number(port), "127.0.0.1", () => console.log("ready"));
