// A child of the measuring program: drains a queue of BullMQ and does nothing else.
const { Queue, Worker } = require("bullmq");
const readline = require("readline");
const settings = JSON.parse(process.env.PIECEWORK_MEASURE_SETTINGS);
const connection = () => {
  const at = new URL(settings.Redis);
  return { host: at.hostname, port: Number(at.port), maxRetriesPerRequest: null };
};
const given = "x".repeat(1000);

async function main() {
  const queue = new Queue("units", { connection: connection() });
  for (let i = 0; i < settings.Units; i += 1000) {
    const many = [];
    for (let n = i; n < Math.min(i + 1000, settings.Units); n++) many.push({ name: "unit", data: { n, given } });
    await queue.addBulk(many);
  }
  console.log("ready");
  readline.createInterface({ input: process.stdin }).on("close", () => process.exit(0)).once("line", () => {
    let done = 0, began = 0n;
    const worker = new Worker("units", async () => {}, { connection: connection(), concurrency: settings.Callers });
    worker.on("completed", () => {
      if (++done === 1) {
        began = process.hrtime.bigint();
        console.log("started");
      }
      if (done === settings.Units) {
        console.log(JSON.stringify({ Units: done - 1, Seconds: Number(process.hrtime.bigint() - began) / 1e9 }));
      }
    });
  });
}
main().catch((err) => { console.error(err); process.exit(1); });
