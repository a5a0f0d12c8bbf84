// Prints the fragments that npm's `mqtt` receives from a broker, each as a JSON string.
import mqtt from "mqtt";

const [broker, topic] = process.argv.slice(1);
const client = mqtt.connect(broker, {
  clientId: "trial",
  clean: false,
  protocolVersion: 5,
  properties: { sessionExpiryInterval: 3600 },
  reconnectPeriod: 100,
});
client.on("connect", ({ sessionPresent }) => sessionPresent || client.subscribe(topic, { qos: 1 }));
client.on("message", (_, payload) => console.log(JSON.stringify(payload.toString())));
client.on("error", () => {});
