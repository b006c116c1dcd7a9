/** The client core as WebAssembly: the calls of torchfsl_client.h, with memory for arguments. */
import { type Bytes, base64, hex, sha256, utf8 } from "./bytes.js";
import { TorchfslError } from "./errors.js";

const ABI_VERSION = 1;
const MESSAGE_BYTES = 512;
const RANDOM_BYTES = 65536; // the most that getRandomValues gives at once
const PLAN_FIELDS_BYTES = 248;

/** Kinds of steps; what is neither is fetched. */
export const SEND = 0;
export const TRAIN = 2;
export const DONE = 3;

type Dtype = "float16" | "float32" | "float64";
export type Reals = Float32Array | Float64Array;

export interface TensorSpec {
  readonly name: string;
  readonly shape: readonly number[];
  readonly dtype: Dtype;
}

/** A segment as the plan describes it. */
export interface Segment {
  readonly name: string;
  readonly policy: "rows" | "blocks" | "scalars" | "dense";
  readonly retrieve: boolean;
  /** Positions; the tensors' in order. */
  readonly m: number;
  /** Values a position. */
  readonly tau: number;
  /** Most positions of a client. */
  readonly k_max: number;
  readonly num_bins: number;
  readonly theta: number;
  readonly stash: number;
  readonly check_bytes: number;
  readonly tag_bytes: number;
  readonly tensors: readonly TensorSpec[];
}

/** Public fields of a plan, which the core has checked. */
export interface PlanFields {
  readonly segments: readonly Segment[];
  readonly session: string;
  readonly hash_seed: string;
  readonly server_keys: readonly string[];
  readonly lane: string;
  readonly max_clients: number;
  readonly min_clients: number;
  readonly max_weight: number;
  readonly max_rounds: number;
  readonly min_contributors: number;
  readonly max_participations?: number;
  readonly min_separation?: number;
  readonly noise_sigma: number;
  readonly lane_sigma: number;
  readonly l2_bound: number;
}

/** Rows of a retrieved segment: `ids`, increasing, and `values` [ids.length, width]. */
export interface Rows {
  ids: number[];
  values: Reals;
  width: number;
}

/** A segment's part of an update: values [ids.length, width]; of a dense segment all, without ids.
 *  BigInt64Array holds values that are quantised already. */
export interface Part {
  ids?: Iterable<number>;
  values: Reals | BigInt64Array;
}

export interface Step {
  kind: number;
  party: 0 | 1;
  message: number;
  /** Of the answer that a fetch brings. */
  size: number;
  /** Of what is sent. */
  data: Bytes;
}

type Call = (...given: (number | bigint)[]) => number;
type Name =
  | "tfsl_abi_version" | "tfsl_plan_open" | "tfsl_plan_info" | "tfsl_plan_close"
  | "tfsl_round_begin" | "tfsl_round_next" | "tfsl_round_give" | "tfsl_round_rows"
  | "tfsl_round_clear" | "tfsl_round_submit" | "tfsl_round_abort" | "tfsl_round_close"
  | "tfsl_last_message";
type Exports = Record<Name | "malloc" | "free", Call> & {
  memory: WebAssembly.Memory;
  _initialize?: Call;
};

/** Memory of one call, wiped at its end. */
class Scope {
  private readonly held: [at: number, size: number][] = [];

  constructor(private readonly core: Core) {}

  room(size: number): number {
    const at = this.core.functions.malloc(size || 1);
    if (!at) throw new TorchfslError("error", "the core has no memory left: reload the page");
    this.held.push([at, size]);
    this.core.bytes(at, size).fill(0);
    return at;
  }

  put(data: ArrayBufferView): number {
    const at = this.room(data.byteLength);
    const from = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    this.core.bytes(at, from.length).set(from);
    return at;
  }

  end(): void {
    for (const [at, size] of this.held) {
      this.core.bytes(at, size).fill(0);
      this.core.functions.free(at);
    }
  }
}

/** A loaded core; plans of it share its memory. */
export class Core {
  functions!: Exports;

  bytes(at: number, size: number): Bytes {
    return new Uint8Array(this.functions.memory.buffer as ArrayBuffer, at, size);
  }

  word(at: number): number {
    return new DataView(this.functions.memory.buffer).getUint32(at, true);
  }

  scoped<Result>(run: (scope: Scope) => Result): Result {
    const scope = new Scope(this);
    try {
      return run(scope);
    } finally {
      scope.end();
    }
  }

  /** Bytes that a tfsl_view names, copied. */
  view(at: number): Bytes {
    return this.bytes(this.word(at), this.word(at + 4)).slice();
  }

  text(at: number): string {
    const data = this.bytes(at, MESSAGE_BYTES);
    return new TextDecoder().decode(data.slice(0, data.indexOf(0)));
  }

  /** A plan; throws where the text is not one, or has fields that the core does not know. */
  open(text: string): CorePlan {
    return this.scoped((scope) => {
      const [data, out, said] = [utf8(text), scope.room(4), scope.room(MESSAGE_BYTES)];
      const given = [scope.put(data), data.length, out, said, MESSAGE_BYTES];
      const status = this.functions.tfsl_plan_open(...given);
      if (status) throw failure(status, this.text(said));
      return new CorePlan(this, this.word(out), text);
    });
  }
}

/**
 * Load the core, once a page.
 *
 * @param source where `core.wasm` is, or its bytes; beside this script by default.
 * @param integrity of the file, `sha256-` and base64 as in SRI. Other bytes and other forms are
 *   refused before anything runs.
 */
export async function loadCore(
  source?: string | URL | BufferSource,
  integrity = "",
): Promise<Core> {
  if (!("Exception" in WebAssembly && "timeout" in AbortSignal)) {
    throw new TorchfslError(
      "version", "the browser is too old: use Chrome 103, Firefox 100, Safari 16 or newer",
    );
  }
  let data = source;
  if (data === undefined || typeof data === "string" || data instanceof URL) {
    const answer = await fetch(data ?? new URL("core.wasm", import.meta.url));
    if (!answer.ok) throw new TorchfslError("not-ready", `core.wasm: status ${answer.status}`);
    data = await answer.arrayBuffer();
  }
  const found = `sha256-${base64(await sha256(data))}`;
  if (integrity && integrity !== found) {
    throw new TorchfslError("altered-message", `core.wasm is ${found}, not ${integrity}`);
  }
  const core = new Core();
  const system: Record<string, (...given: number[]) => number> = {
    random_get: (at = 0, size = 0) => {
      for (let done = 0; done < size; done += RANDOM_BYTES) {
        crypto.getRandomValues(core.bytes(at + done, Math.min(RANDOM_BYTES, size - done)));
      }
      return 0;
    },
    proc_exit: (status) => {
      throw new TorchfslError("error", `the core has stopped with ${status}: reload the page`);
    },
  };
  const module = await WebAssembly.compile(data);
  const imports: WebAssembly.Imports = {};
  for (const { module: from, name } of WebAssembly.Module.imports(module)) {
    (imports[from] ??= {})[name] = system[name] ?? (() => 0);
  }
  const instance = await WebAssembly.instantiate(module, imports);
  core.functions = instance.exports as Exports;
  core.functions._initialize?.();
  const version = core.functions.tfsl_abi_version();
  if (version !== ABI_VERSION) {
    throw new TorchfslError("version", `core.wasm has interface ${version}, not ${ABI_VERSION}`);
  }
  return core;
}

/** A plan that the core has read. */
export class CorePlan {
  readonly fields: PlanFields;
  /** Hexadecimal SHA-256 of its text. */
  readonly digest: string;

  constructor(
    readonly core: Core,
    private readonly handle: number,
    readonly text: string,
  ) {
    this.fields = JSON.parse(text) as PlanFields;
    this.digest = core.scoped((scope) => {
      const at = scope.put(new Uint32Array(PLAN_FIELDS_BYTES / 4).fill(PLAN_FIELDS_BYTES, 0, 1));
      check(core.functions.tfsl_plan_info(handle, at));
      return hex(core.bytes(at + 136, 32));
    });
  }

  /** Tensors that come in the clear, in the core's order. */
  get clear(): TensorSpec[] {
    return this.fields.segments.filter((one) => !one.retrieve).flatMap((one) => one.tensors);
  }

  indexOf(name: string): number {
    return this.fields.segments.findIndex((one) => one.name === name);
  }

  /** A round that has begun, and what was wrong with the rows: then it sends a dummy report. */
  begin(
    client: bigint,
    number: number,
    wanted: Record<string, Iterable<number>>,
  ): [CoreRound, Error?] {
    const { core } = this;
    return core.scoped((scope) => {
      const words = Object.entries(wanted).flatMap(([name, ids]) => {
        const sorted = integers([...new Set(ids)].sort((a, b) => a - b));
        return [this.indexOf(name), 0, scope.put(sorted), sorted.length];
      });
      const [rows, out] = [scope.put(new Uint32Array(words)), scope.room(4)];
      const given = [this.handle, client, BigInt(number), rows, words.length / 4, out];
      const status = core.functions.tfsl_round_begin(...given);
      if (!core.word(out)) throw failure(status, "");
      const round = new CoreRound(this, core.word(out));
      return status ? [round, failure(status, round.message())] : [round];
    });
  }

  close(): void {
    this.core.functions.tfsl_plan_close(this.handle);
  }
}

/** A round of the core: `next` says what to do, `give` that it was done. */
export class CoreRound {
  private readonly core: Core;

  constructor(
    private readonly plan: CorePlan,
    private readonly handle: number,
  ) {
    this.core = plan.core;
  }

  next(): Step {
    return this.core.scoped((scope) => {
      const at = scope.room(40);
      this.call("tfsl_round_next", at);
      const [kind, party, message, size] = [0, 4, 8, 36].map((field) => this.core.word(at + field));
      const data = kind === SEND ? this.core.view(at + 32) : new Uint8Array();
      return { kind, party, message, size, data } as Step;
    });
  }

  give(answer: Uint8Array = new Uint8Array()): void {
    this.core.scoped((scope) => this.call("tfsl_round_give", scope.put(answer), answer.length));
  }

  rows(segment: number): Rows {
    const { tau, tensors } = this.plan.fields.segments[segment]!;
    return this.core.scoped((scope) => {
      const at = scope.room(16);
      this.call("tfsl_round_rows", segment, at, at + 8);
      const ids = [...new BigInt64Array(this.core.view(at).buffer)].map(Number);
      return { ids, values: reals(this.core.view(at + 8), tensors[0]!.dtype), width: tau };
    });
  }

  /** A tensor in the clear, by its place among them. */
  clear(place: number): Reals {
    return this.core.scoped((scope) => {
      const at = scope.room(8);
      this.call("tfsl_round_clear", place, at);
      return reals(this.core.view(at), this.plan.clear[place]!.dtype);
    });
  }

  submit(update: Record<string, Part>, weight: number): void {
    this.core.scoped((scope) => {
      const words = Object.entries(update).flatMap(([name, { ids, values }]) => {
        const segment = this.plan.indexOf(name);
        const width = this.plan.fields.segments[segment]?.tau ?? 1;
        const rows = ids && integers([...ids]);
        const dtype = values instanceof BigInt64Array ? 3 : values instanceof Float64Array ? 2 : 1;
        const count = rows?.length ?? values.length / width;
        const place = count * width === values.length ? segment : -1; // no segment: refused
        return [place, dtype, rows ? scope.put(rows) : 0, count, scope.put(values)];
      });
      const parts = scope.put(new Uint32Array(words));
      const count = Number.isSafeInteger(weight) && weight > 0 ? weight : 0; // which is refused
      this.call("tfsl_round_submit", parts, words.length / 5, BigInt(count));
    });
  }

  abort(): void {
    this.call("tfsl_round_abort");
  }

  close(): void {
    this.core.functions.tfsl_round_close(this.handle);
  }

  message(): string {
    return this.core.scoped((scope) => {
      const at = scope.room(MESSAGE_BYTES);
      check(this.core.functions.tfsl_last_message(this.handle, at, MESSAGE_BYTES));
      return this.core.text(at);
    });
  }

  private call(name: Name, ...given: (number | bigint)[]): void {
    const status = this.core.functions[name](this.handle, ...given);
    if (status) throw failure(status, this.message());
  }
}

function check(status: number): void {
  if (status) throw failure(status, "");
}

/** What the core said, `code: text`. */
function failure(status: number, said: string): TorchfslError {
  const [code, ...text] = said.split(": ");
  return new TorchfslError(code || "error", text.join(": ") || `the core's status is ${status}`);
}

/** Row ids; one that is no whole number becomes -1, which the core refuses with a dummy report. */
function integers(ids: number[]): BigInt64Array<ArrayBuffer> {
  return BigInt64Array.from(ids, (id) => (Number.isSafeInteger(id) ? BigInt(id) : -1n));
}

function reals(data: Bytes, dtype: Dtype): Reals {
  if (dtype === "float64") return new Float64Array(data.buffer);
  if (dtype === "float32") return new Float32Array(data.buffer);
  return Float32Array.from(new Uint16Array(data.buffer), (half) => {
    const [exponent, fraction] = [(half >> 10) & 31, half & 1023];
    const size = exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;
    return half >> 15 ? -size : size; // the core lets no infinity pass
  });
}
