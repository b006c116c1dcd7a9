/** Calls to one server: each is signed, and sent again with the same bytes where that may help. */
import { type Bytes, base64url, concat, frame, le64, sha256, utf8 } from "./bytes.js";
import { TorchfslError, isPassing } from "./errors.js";

/** The wire version of this client. */
export const WIRE_VERSION = 4;

const ATTEMPT_MS = 90_000;
const FIRST_PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 3_000;
const MOST_SIGNATURES = 8;

/** Gives tokens for both servers: asks your login service, which calls `Issuer.admit`. */
export type TokenSource = (ask: {
  /** The plan's session. */
  task: string;
  /** Thumbprint of the key that the tokens are to name. */
  jkt: string;
}) => Promise<readonly [string, string]>;

/** Signs requests with a key that no script can read, and holds the tokens for it. */
export class Signer {
  client = 0n;
  tokens: readonly [string, string] = ["", ""];
  private renewal: Promise<void> | undefined;

  private constructor(
    private readonly key: CryptoKey,
    readonly point: Bytes,
    private readonly jkt: string,
    private readonly task: string,
    private readonly source: TokenSource,
  ) {}

  /** Make a key and get tokens for it. */
  static async create(task: string, source: TokenSource): Promise<Signer> {
    const kind = { name: "ECDSA", namedCurve: "P-256" };
    const pair = await crypto.subtle.generateKey(kind, false, ["sign", "verify"]);
    const point = new Uint8Array(await crypto.subtle.exportKey("raw", pair.publicKey));
    const [x, y] = [point.slice(1, 33), point.slice(33)].map(base64url);
    const jkt = base64url(await sha256(utf8(`{"crv":"P-256","kty":"EC","x":"${x}","y":"${y}"}`)));
    const signer = new Signer(pair.privateKey, point, jkt, task, source);
    await signer.renew();
    return signer;
  }

  /** Get other tokens; two calls at a time get the same. */
  renew(): Promise<void> {
    this.renewal ??= this.ask().finally(() => (this.renewal = undefined));
    return this.renewal;
  }

  async sign(text: Bytes): Promise<Bytes> {
    const how = { name: "ECDSA", hash: "SHA-256" };
    return new Uint8Array(await crypto.subtle.sign(how, this.key, text));
  }

  private async ask(): Promise<void> {
    const tokens = await this.source({ task: this.task, jkt: this.jkt });
    const claims = tokens[0].split(".")[1] ?? "";
    const text = atob(claims.replace(/-/g, "+").replace(/_/g, "/"));
    const { sub } = JSON.parse(text) as { sub: string };
    const client = BigInt(/^torchfsl:client:(\d+)$/.exec(sub)?.[1] ?? -1);
    if (client < 0 || (this.tokens[0] && client !== this.client)) {
      throw new TorchfslError("token-refused", `the token is for ${sub}, not for this client`);
    }
    this.client = client;
    this.tokens = tokens;
  }
}

/** One of the two servers. */
export class Server {
  signer: Signer | undefined;
  private nonce = "";
  private readonly base: string;

  constructor(
    url: string,
    readonly party: 0 | 1,
    private readonly retryMs: number,
  ) {
    this.base = `${url.replace(/\/+$/, "")}/torchfsl/v1/`;
    if (!this.base.startsWith("https://")) {
      throw new TorchfslError("parameter", `server ${party} is ${url}: expected https://HOST:PORT`);
    }
  }

  /** Call until it is answered or refused, or time is over. `limit`: most bytes of an answer. */
  async call(name: string, body: Bytes, limit: number): Promise<Bytes> {
    const deadline = performance.now() + this.retryMs;
    let [pause, signatures, isRenewed] = [FIRST_PAUSE_MS, 0, false];
    for (;;) {
      try {
        return await this.attempt(name, body, limit);
      } catch (error) {
        if (!(error instanceof TorchfslError)) throw error;
        const isStale = error.code === "nonce-expired" || error.code === "proof-used";
        if (isStale && ++signatures < MOST_SIGNATURES) continue;
        if (error.status === 401 && !isRenewed && !isStale && this.signer) {
          isRenewed = true;
          await this.signer.renew();
          continue;
        }
        if (!isPassing(error)) throw error;
        const least = error instanceof Refusal ? error.laterMs : 0;
        const wait = Math.max(pause * (0.5 + Math.random() / 2), least);
        if (performance.now() + wait >= deadline) throw error;
        await sleep(wait);
        pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
      }
    }
  }

  private async attempt(name: string, body: Bytes, limit: number): Promise<Bytes> {
    const headers = { "Torchfsl-Wire": String(WIRE_VERSION), ...(await this.proof(name, body)) };
    const signal = AbortSignal.timeout(ATTEMPT_MS);
    let answer: Response, data: Bytes;
    try {
      answer = await fetch(this.base + name, {
        method: "POST", headers, body, signal, mode: "cors", credentials: "omit",
        cache: "no-store", redirect: "error", referrerPolicy: "no-referrer",
      });
      data = await whole(answer, answer.ok ? limit : 1 << 16);
    } catch (error) {
      if (error instanceof TorchfslError) throw error;
      throw new TorchfslError("not-ready", `server ${this.party} gives no answer: ${error}`);
    }
    this.nonce = answer.headers.get("Torchfsl-Nonce") ?? this.nonce;
    if (answer.ok) return data;
    const { code, message } = refusal(data);
    const seconds = Number(answer.headers.get("Retry-After")) || 0;
    throw new Refusal(code, `server ${this.party}: ${message}`, answer.status, 1000 * seconds);
  }

  /** Headers that say who calls; none before there is a signer, as open calls need none. */
  private async proof(name: string, body: Bytes): Promise<Record<string, string>> {
    const { signer, nonce } = this;
    if (!signer) return {};
    const token = signer.tokens[this.party];
    const digest = await sha256(body);
    const text = frame(
      utf8("torchfsl request"), utf8(String(WIRE_VERSION)), utf8(`torchfsl:server:${this.party}`),
      utf8(name), await sha256(utf8(token)), digest, le64(body.length), utf8(nonce),
    );
    return {
      Authorization: `Torchfsl ${token}`,
      "Torchfsl-Key": base64url(signer.point),
      "Torchfsl-Digest": base64url(digest),
      "Torchfsl-Nonce": nonce,
      "Torchfsl-Proof": base64url(await signer.sign(text)),
    };
  }
}

/** What a server says instead of an answer, and when to come back. */
class Refusal extends TorchfslError {
  constructor(
    code: string,
    message: string,
    status: number,
    readonly laterMs: number,
  ) {
    super(code, message, status);
  }
}

/** The answers of both servers; of two failures one that is final. */
export async function both<Result>(calls: Promise<Result>[]): Promise<Result[]> {
  const ended = await Promise.allSettled(calls);
  const errors = ended.flatMap((one) => (one.status === "rejected" ? [one.reason as unknown] : []));
  if (errors.length) throw errors.find((error) => !isPassing(error)) ?? errors[0];
  return ended.map((one) => (one as PromiseFulfilledResult<Result>).value);
}

export const sleep = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));

/** A body of at most so many bytes, whatever its header says. */
async function whole(answer: Response, limit: number): Promise<Bytes> {
  const [parts, reader] = [[] as Bytes[], answer.body?.getReader()];
  let size = 0;
  for (;;) {
    const piece = await reader?.read();
    if (!piece || piece.done) return concat(parts);
    parts.push(piece.value);
    if ((size += piece.value.length) > limit) {
      await reader?.cancel();
      throw new TorchfslError("answer-too-long", `an answer of more than ${limit} bytes`);
    }
  }
}

function refusal(data: Bytes): { code: string; message: string } {
  try {
    const { code, message } = JSON.parse(new TextDecoder().decode(data)) as Record<string, unknown>;
    return { code: String(code).slice(0, 64), message: String(message).slice(0, 1000) };
  } catch {
    return { code: "protocol", message: "an answer that is not of torchfsl" };
  }
}
