// Prints the fragments that npm's `ws` receives from a hub, each as a JSON string.
import WebSocket from "ws";

const [hub, topic] = process.argv.slice(1);
let [since] = process.argv.slice(3);
const connect = () => {
  const socket = new WebSocket(`${hub.replace("http", "ws")}ws`);
  socket.on("open", () => socket.send(JSON.stringify({ type: "subscribe", topic, since })));
  socket.on("message", (data) => {
    const text = data.toString();
    if (!text.startsWith("<")) return;
    [, since] = /until="([^"]*)"/.exec(text);
    console.log(JSON.stringify(text));
  });
  socket.on("error", () => {});
  socket.on("close", () => setTimeout(connect, 100));
};
connect();
