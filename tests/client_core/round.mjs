// The core as WebAssembly in one round, for one client or several: node round.mjs JOB. Its transport
// is that of the page's example in C: a line with server, kind and size, then bytes; back come size
// and bytes. A job with `times` names the file for seconds of processor time: opening, each client.
import fs from "node:fs";

const job = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
const quiet = { get: (_, name) => (...given) => system[name]?.(...given) ?? 0 };
const system = {
  random_get: (at, size) => void crypto.getRandomValues(bytes(at, size)),
  proc_exit: (status) => process.exit(100 + status),
};
const imports = new Proxy({}, { get: () => new Proxy({}, quiet) });
const seconds = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
};
const started = seconds();
const module = new WebAssembly.Module(fs.readFileSync(job.wasm));
const given = {};
for (const { module: from, name } of WebAssembly.Module.imports(module)) {
  (given[from] ??= {})[name] = imports[from][name];
}
const { exports } = new WebAssembly.Instance(module, given);
exports._initialize?.();
let spent = 0;
const core = { ...exports };
for (const name of Object.keys(core).filter((one) => one.startsWith("tfsl_round"))) {
  core[name] = (...arguments_) => {
    const start = seconds();
    const status = exports[name](...arguments_);
    spent += seconds() - start;
    return status;
  };
}

const bytes = (at, size) => new Uint8Array(core.memory.buffer, at, size);
const view = () => new DataView(core.memory.buffer);
const put = (data) => {
  const at = core.malloc(data.length || 1);
  bytes(at, data.length).set(data);
  return at;
};
const words = (numbers) => put(new Uint8Array(new Uint32Array(numbers).buffer));
const longs = (numbers) => put(new Uint8Array(new BigInt64Array(numbers.map(BigInt)).buffer));
const check = (status) => {
  if (status) throw new Error(`status ${status}`);
};
const read = (size) => {
  const data = Buffer.alloc(size);
  for (let at = 0; at < size; ) at += fs.readSync(0, data, at, size - at);
  return data;
};
const write = (data) => {
  for (let at = 0; at < data.length; ) at += fs.writeSync(1, data, at);
};

const text = new TextEncoder().encode(job.plan);
const out = core.malloc(8);
check(core.tfsl_plan_open(put(text), text.length, out, 0, 0));
const plan = view().getUint32(out, true);
const wanted = words(job.wanted.flatMap(({ segment, ids }) => [segment, 0, longs(ids), ids.length]));
const clients = job.clients ?? 1;
const size = job.tape.length / 2 / clients; // of the tape of each, if there are tapes
const tapes = size && put(Buffer.from(job.tape, "hex"));
const parts = words(job.parts.flatMap(({ segment, rows, num, values }) =>
  [segment, 3, rows ? longs(rows) : 0, num, longs(values)]));
const step = core.malloc(40);
const field = (at) => view().getUint32(step + at, true);
const times = [seconds() - started];
for (let client = job.client; client < job.client + clients; client++) {
  spent = 0;
  const begin = [plan, BigInt(client), BigInt(job.round), wanted, job.wanted.length];
  const tape = tapes + (client - job.client) * size;
  if (size) check(core.tfsl_test_round_begin(...begin, tape, size, out));
  else check(core.tfsl_round_begin(...begin, out));
  const round = view().getUint32(out, true);
  for (;;) {
    check(core.tfsl_round_next(round, step));
    const [kind, party, message, , data, size] = [0, 4, 8, 12, 32, 36].map(field);
    if (kind === 3) break;
    if (kind === 2) {
      check(core.tfsl_round_submit(round, parts, job.parts.length, BigInt(job.weight)));
      continue;
    }
    write(Buffer.from(`${party} ${message} ${kind ? 0 : size}\n`));
    if (!kind) write(bytes(data, size));
    const answer = read(parseInt(read(8).toString(), 16));
    const at = put(answer);
    check(core.tfsl_round_give(round, at, answer.length));
    core.free(at);
  }
  if (field(12) !== 1) process.exit(1);
  core.tfsl_round_close(round);
  times.push(spent);
}
if (job.times) fs.writeFileSync(job.times, JSON.stringify(times));
