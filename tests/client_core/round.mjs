// One round of the core as WebAssembly: node round.mjs JOB. Its transport is that of the page's
// example in C: a line with server, kind and size, then bytes; back come size and bytes.
import fs from "node:fs";

const job = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
const quiet = { get: (_, name) => (...given) => system[name]?.(...given) ?? 0 };
const system = {
  random_get: (at, size) => void crypto.getRandomValues(bytes(at, size)),
  proc_exit: (status) => process.exit(100 + status),
};
const imports = new Proxy({}, { get: () => new Proxy({}, quiet) });
const module = new WebAssembly.Module(fs.readFileSync(job.wasm));
const given = {};
for (const { module: from, name } of WebAssembly.Module.imports(module)) {
  (given[from] ??= {})[name] = imports[from][name];
}
const { exports: core } = new WebAssembly.Instance(module, given);
core._initialize?.();

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
const tape = Buffer.from(job.tape, "hex");
const number = [BigInt(job.client), BigInt(job.round)];
const begin = [plan, ...number, wanted, job.wanted.length, put(tape), tape.length, out];
check(core.tfsl_test_round_begin(...begin));
const round = view().getUint32(out, true);
const step = core.malloc(40);
const field = (at) => view().getUint32(step + at, true);
for (;;) {
  check(core.tfsl_round_next(round, step));
  const [kind, party, message, , data, size] = [0, 4, 8, 12, 32, 36].map(field);
  if (kind === 3) break;
  if (kind === 2) {
    const parts = job.parts.flatMap(({ segment, rows, num, values }) =>
      [segment, 3, rows ? longs(rows) : 0, num, longs(values)]);
    check(core.tfsl_round_submit(round, words(parts), job.parts.length, BigInt(job.weight)));
    continue;
  }
  write(Buffer.from(`${party} ${message} ${kind ? 0 : size}\n`));
  if (!kind) write(bytes(data, size));
  const answer = read(parseInt(read(8).toString(), 16));
  const at = put(answer);
  check(core.tfsl_round_give(round, at, answer.length));
  core.free(at);
}
process.exit(field(12) === 1 ? 0 : 1);
