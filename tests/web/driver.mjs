// A client in node or in a page, as its job says; see tests/support/web_page.py.
//   job: urls, policy, rounds, wanted and updates by round
//   dies: a round in which it is gone after server 0 has the report, and server 1 has not
//   closes: a round in which it is closed in training
//   fails: a round whose training throws;  refuses: how often a Submit gets 503 at first
//   alters: a round whose model is altered on the way
const isPage = "document" in globalThis;
const plain = globalThis.fetch;

export async function main(base, file) {
  const lib = await import(isPage ? "/dist/index.js" : `${process.env.DIST}/index.js`);
  const ask = async (path, body) =>
    (await plain(base + path, { method: "POST", body: JSON.stringify(body) })).json();
  const tell = (name, more = {}) => ask("/event", { name, ...more });
  const job = await ask("/job", {});
  const calls = listen(job);
  try {
    const outbox = isPage ? lib.pageOutbox() : file ? await fileOutbox(file) : lib.memoryOutbox();
    const wasm = isPage ? undefined : await (await import("node:fs/promises")).readFile(`${process.env.DIST}/core.wasm`);
    const core = await lib.loadCore(wasm);
    const token = (asked) => ask("/tokens", asked);
    const servers = await lib.connect(job.urls, { core, token, policy: job.policy, outbox });
    await tell("connected", { resumed: await servers.resume(), digest: servers.plan.digest });
    if (job.rounds) await takePart(servers, job, tell, calls);
  } catch (error) {
    await tell("error", { code: error.code, text: String(error?.stack), calls });
  }
  await tell("end", { calls });
}

async function takePart(servers, job, tell, calls) {
  let left = job.rounds;
  for await (const round of servers.rounds({ pollSeconds: 0.1 })) {
    calls.round = round.number;
    const fetched = await round.fetch(job.wanted[round.number]);
    await tell("training", { round: round.number, fetched: plainly(fetched) });
    if (job.closes === round.number) await vanish(() => location.replace("about:blank"));
    if (job.fails === round.number) throw new RangeError("training failed");
    const update = Object.entries(job.updates[round.number]).map(([name, { ids, values }]) => [
      name, { ...(ids && { ids }), values: BigInt64Array.from(values, BigInt) },
    ]);
    await round.submit(Object.fromEntries(update));
    await tell("submitted", { round: round.number, calls });
    if (!--left) return;
  }
}

// Notes every call to a server, and is in the way as the job says.
function listen(job) {
  const calls = [];
  let [refuses, first] = [job.refuses ?? 0, () => {}];
  const atFirst = new Promise((resolve) => (first = resolve));
  globalThis.fetch = async (url, options) => {
    const name = /\/torchfsl\/v1\/(\w+)$/.exec(url)?.[1];
    if (!name) return plain(url, options);
    const party = job.urls.findIndex((one) => String(url).startsWith(one));
    const { "Torchfsl-Digest": digest, "Torchfsl-Proof": proof } = options.headers;
    calls.push({ party, name, size: options.body.length, digest, proof, at: performance.now() });
    if (name === "Submit" && refuses-- > 0) {
      const told = JSON.stringify({ code: "not-ready", message: "later" });
      return new Response(told, { status: 503, headers: { "Retry-After": "1" } });
    }
    if (name === "Model" && job.alters === calls.round) {
      const data = new Uint8Array(await (await plain(url, options)).arrayBuffer());
      data[data.length - 1] ^= 1;
      return new Response(data);
    }
    if (name === "Submit" && job.dies === calls.round) {
      if (party === 1) {
        await atFirst;
        return vanish(() => location.reload());
      }
      const answer = await plain(url, options);
      first();
      return answer;
    }
    return plain(url, options);
  };
  return calls;
}

// A page leaves, a process ends, and nothing more happens.
function vanish(leave) {
  if (isPage) leave();
  else process.exit(3);
  return new Promise(() => {});
}

const plainly = ({ rows, tensors }) => ({
  rows: Object.fromEntries(Object.entries(rows).map(([n, one]) => [n, { ids: one.ids, values: [...one.values] }])),
  tensors: Object.fromEntries(Object.entries(tensors).map(([n, one]) => [n, [...one.values]])),
});

// One process at a time; bytes as numbers.
async function fileOutbox(file) {
  const fs = await import("node:fs");
  return {
    async change(key, edit) {
      const all = fs.existsSync(file) ? JSON.parse(fs.readFileSync(file, "utf8")) : {};
      const found = all[key];
      found?.report?.forEach((one) => (one.body = Uint8Array.from(one.body)));
      all[key] = edit(found);
      const plain = (_, value) => (value instanceof Uint8Array ? [...value] : value);
      fs.writeFileSync(`${file}.new`, JSON.stringify(all, plain));
      fs.renameSync(`${file}.new`, file);
      return all[key];
    },
  };
}

if (!isPage) await main(process.argv[2], process.argv[3]);
