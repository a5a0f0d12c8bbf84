// Prints the fragments that npm's `eventsource` receives from a hub, each as a JSON string.
import { EventSource } from "eventsource";

const [hub, topic, since] = process.argv.slice(1);
const query = new URLSearchParams({ topic, since });
const stream = new EventSource(`${hub}events?${query}`);
stream.onmessage = ({ data }) => console.log(JSON.stringify(data));
