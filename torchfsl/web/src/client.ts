/** A client of a task on two servers: connect, rounds, and what leaves in each. */
import { type Bytes, utf8 } from "./bytes.js";
import {
  type Core, type CorePlan, type CoreRound, type Part, type Reals, type Rows, type Step,
  DONE, SEND, TRAIN,
} from "./core.js";
import { TorchfslError, isFinal } from "./errors.js";
import { type Entry, type Outbox, type Sent, memoryOutbox, pageOutbox } from "./outbox.js";
import { type Policy, checkIssuers, checkPlan, checkPolicy } from "./policy.js";
import { type TokenSource, Server, Signer, both, sleep } from "./server.js";

const PLAN_BYTES = 1 << 25;
const INFO_BYTES = 1 << 16;
const ANSWER = 4;
const [TREES, TREES_COMMIT] = [1, 2];

export interface Settings {
  core: Core;
  token: TokenSource;
  policy: Policy;
  /** Where a report waits until both servers have it. Default: IndexedDB, or memory without it. */
  outbox?: Outbox;
  /** How long a call is tried again, in seconds. Default: 300. */
  retrySeconds?: number;
}

/** What a round's model is: rows that were fetched, and tensors in the clear, by name. */
export interface Fetched {
  rows: Record<string, Rows>;
  tensors: Record<string, { values: Reals; shape: readonly number[] }>;
}

interface Info {
  plan_digest: string;
  round: number;
  open: boolean;
  halted: string;
  issuers?: string;
}

/**
 * Take part in the task that two servers run. The policy is checked before anything of the client
 * leaves, its number and its token included.
 *
 * Throws `below-policy` if the plan or a server is below a floor, `protocol` if the plans differ,
 * and `not-ready` if a server is not there in time.
 */
export async function connect(
  urls: readonly [string, string],
  settings: Settings,
): Promise<Connection> {
  checkPolicy(settings.policy);
  const retryMs = 1000 * (settings.retrySeconds ?? 300);
  const servers = urls.map((url, party) => new Server(url, party as 0 | 1, retryMs));
  const answers = await both(servers.map((one) => one.call("Plan", utf8("{}"), PLAN_BYTES)));
  const [first, second] = answers.map(planOf);
  if (first!.plan !== second!.plan || String(first!.coins) !== String(second!.coins)) {
    throw new TorchfslError("protocol", "the servers have different plans: tell their operators");
  }
  [first!, second!].forEach((one, party) => checkIssuers(settings.policy, party, one.issuers));
  const plan = settings.core.open(first!.plan);
  try {
    await checkPlan(settings.policy, plan, first!.coins);
    const signer = await Signer.create(plan.fields.session, settings.token);
    for (const one of servers) one.signer = signer;
    const kept = settings.outbox ?? (globalThis.indexedDB ? pageOutbox() : memoryOutbox());
    return new Connection(plan, servers, signer.client, kept, settings.policy);
  } catch (error) {
    plan.close();
    throw error;
  }
}

/** A client of a task. */
export class Connection {
  private seen = -1;

  /** Use `connect`. */
  constructor(
    readonly plan: CorePlan,
    /** @internal */
    readonly servers: Server[],
    /** Its number, which the tokens name. */
    readonly client: bigint,
    private readonly outbox: Outbox,
    private readonly policy: Policy,
  ) {}

  /**
   * The open rounds, one after the other; those that this client has begun before are left out. A
   * report that waits in the outbox leaves first. After an error in the loop's body, and where it
   * did not submit, a report that adds nothing leaves, so that servers see no difference.
   *
   * Ends when `signal` aborts between two rounds, or when the plan allows this client no more.
   */
  async *rounds(
    given: { signal?: AbortSignal; pollSeconds?: number } = {},
  ): AsyncGenerator<Round, void> {
    await this.resume();
    for (;;) {
      const number = await this.nextRound(given.signal, 1000 * (given.pollSeconds ?? 2));
      if (number < 0) return;
      const round = new Round(this, number);
      try {
        yield round;
      } finally {
        await round.end();
      }
    }
  }

  /**
   * Send a report that an interruption left in the outbox: the same bytes. Whether there was one
   * that is now at both servers; a round that has closed went on without it.
   */
  async resume(): Promise<boolean> {
    const entry = await this.change((found) => found);
    if (!entry.report) return false;
    try {
      await this.deliver(entry);
      return true;
    } catch (error) {
      if (isFinal(error)) return false;
      throw error;
    }
  }

  /** Frees the plan's memory. */
  close(): void {
    this.plan.close();
  }

  /** @internal Use a round up, for good, before the first byte in it leaves. */
  async begin(number: number): Promise<void> {
    await this.change((entry) => {
      if (number <= entry.last) {
        const said = `round ${number} was begun before: wait for the next one`;
        throw new TorchfslError("interrupted-round", said);
      }
      if (!this.mayReport(entry, number)) {
        const said = `the plan allows this client no report in round ${number}`;
        throw new TorchfslError("participations-spent", said);
      }
      return { ...entry, last: number };
    });
  }

  /** @internal Store a report, and send it. */
  async report(number: number, report: Sent[]): Promise<void> {
    const sent = (entry: Entry) => ({ ...entry, report, sent: [...entry.sent, number] });
    await this.deliver(await this.change(sent));
  }

  /** Send the report of an entry; it is kept where the same bytes may still arrive later. */
  private async deliver({ report = [], sent: { length } }: Entry): Promise<void> {
    let refusal: unknown;
    try {
      for (const name of ["Retrieve", "Submit"] as const) {
        const sent = report.filter((one) => one.method === name);
        await both(sent.map((one) => this.servers[one.party]!.call(name, one.body, PLAN_BYTES)));
      }
    } catch (error) {
      if (!isFinal(error)) throw error;
      refusal = error;
    }
    const without = ({ report: _, ...entry }: Entry) => entry;
    // Another page may have stored the report of a later round meanwhile.
    await this.change((entry) => (entry.sent.length === length ? without(entry) : entry));
    if (refusal) throw refusal;
  }

  private change(edit: (entry: Entry) => Entry): Promise<Entry> {
    const { digest: plan, fields } = this.plan;
    return this.outbox.change(`${fields.session}/${this.client}`, (found) => {
      const entry = found ?? { plan, last: -1, sent: [] };
      return edit(entry.plan === plan ? entry : { plan, last: -1, sent: entry.sent });
    });
  }

  /** Whether this client's own count allows a report in a round. */
  private mayReport({ sent }: Entry, number: number): boolean {
    const { max_participations: most = 0, min_separation: apart = 1 } = this.plan.fields;
    const others = sent.filter((one) => one !== number);
    return others.length < (most || Infinity) && others.every((one) => number - one >= apart);
  }

  /** The number of an open round that this client may begin, or -1 at the end. */
  private async nextRound(signal: AbortSignal | undefined, pollMs: number): Promise<number> {
    const most = this.plan.fields.max_participations || Infinity;
    for (; !signal?.aborted; await sleep(pollMs)) {
      const asked = this.servers.map((one) => one.call("Info", utf8("{}"), INFO_BYTES));
      const infos = (await both(asked)).map((data) => json(data) as unknown as Info);
      for (const { halted, plan_digest: digest } of infos) {
        if (halted) throw new TorchfslError("server-halted", `a server has halted: ${halted}`);
        if (digest !== this.plan.digest) {
          throw new TorchfslError("another-plan", "the servers have another task: connect again");
        }
      }
      infos.forEach((one, party) => checkIssuers(this.policy, party, one.issuers));
      const number = infos[0]!.round;
      const isOpen = infos.every((one) => one.open && one.round === number);
      if (!isOpen || !Number.isSafeInteger(number) || number <= this.seen) continue;
      this.seen = number;
      await this.resume(); // what another page of this client has left
      const entry = await this.change((found) => found);
      if (entry.sent.length >= most) return -1;
      if (number > entry.last && this.mayReport(entry, number)) return number;
    }
    return -1;
  }
}

/** One round of one client. */
export class Round {
  private core: CoreRound | undefined;
  private hasBegun = false;
  private trees: Sent[] = [];
  private reports: Sent[] = [];
  private answers: Bytes[] = [];

  /** From `Connection.rounds`. */
  constructor(
    private readonly connection: Connection,
    readonly number: number,
  ) {}

  /**
   * Take part: fetch rows privately, and the tensors in the clear.
   *
   * @param rows by segment that the plan retrieves, at most k_max positions each. If they are not
   *   valid, this throws after a report that adds nothing has left.
   */
  async fetch(rows: Record<string, Iterable<number>>): Promise<Fetched> {
    if (this.hasBegun) throw new TorchfslError("wrong-step", "this round has begun: fetch once");
    this.hasBegun = true;
    const { plan, client } = this.connection;
    await this.connection.begin(this.number);
    const [core, wrong] = plan.begin(client, this.number, rows);
    this.core = core;
    try {
      await this.advance();
      if (wrong) throw wrong;
      return this.fetched(core, plan);
    } catch (error) {
      this.close(); // silence from here on, as of a client that dropped out
      throw error;
    }
  }

  /**
   * Send an update; returns when both servers have it. If it is not valid, this throws after a
   * report that adds nothing has left. If a server was not there in time, the report waits in the
   * outbox for `Connection.resume`.
   *
   * @param update a part for each segment of the plan.
   * @param weight 1 to the plan's max_weight.
   */
  async submit(update: Record<string, Part>, weight = 1): Promise<void> {
    const core = this.training();
    let wrong: unknown;
    try {
      core.submit(update, weight);
    } catch (error) {
      wrong = error;
    }
    await this.leave();
    if (wrong) throw wrong;
  }

  /** Send a report that adds nothing. */
  async abort(): Promise<void> {
    this.training().abort();
    await this.leave();
  }

  /** @internal */
  async end(): Promise<void> {
    if (this.core) await this.abort();
  }

  private training(): CoreRound {
    if (!this.core) throw new TorchfslError("wrong-step", "fetch first, and submit once");
    return this.core;
  }

  private async leave(): Promise<void> {
    try {
      await this.advance();
    } finally {
      this.close();
    }
  }

  private close(): void {
    this.core?.close();
    this.core = undefined;
  }

  /** Steps until the core waits for an update, or has said all. */
  private async advance(): Promise<void> {
    const core = this.core!;
    for (let step = core.next(); step.kind !== TRAIN && step.kind !== DONE; step = core.next()) {
      if (step.kind === SEND) {
        core.give();
        await this.keep(step);
        continue;
      }
      const answer = await this.answer(step);
      try {
        core.give(answer);
      } catch (error) {
        await this.advance(); // silence, or a report that adds nothing
        throw error;
      }
    }
  }

  /** Messages leave once both servers' are there; trees with the first question for rows. */
  private async keep({ party, message, data: body }: Step): Promise<void> {
    if (message === TREES || message === TREES_COMMIT) {
      this.trees.push({ party, method: "Retrieve", body });
    } else if (this.reports.push({ party, method: "Submit", body }) === 2) {
      await this.connection.report(this.number, [...this.trees.splice(0), ...this.reports]);
    }
  }

  private async answer({ party, message, size }: Step): Promise<Bytes> {
    const { servers } = this.connection;
    if (message !== ANSWER) {
      return servers[party]!.call("Model", utf8(`{"round": ${this.number}}`), size);
    }
    const trees = this.trees.splice(0).sort((a, b) => a.party - b.party);
    if (trees.length) {
      const asked = trees.map((one) => servers[one.party]!.call(one.method, one.body, size));
      this.answers = await both(asked);
    }
    return this.answers[party]!;
  }

  private fetched(core: CoreRound, plan: CorePlan): Fetched {
    const [rows, tensors]: [Fetched["rows"], Fetched["tensors"]] = [{}, {}];
    plan.fields.segments.forEach(({ name, retrieve }, index) => {
      if (retrieve) rows[name] = core.rows(index);
    });
    plan.clear.forEach(({ name, shape }, place) => {
      tensors[name] = { values: core.clear(place), shape };
    });
    return { rows, tensors };
  }
}

function json(data: Bytes): Record<string, unknown> {
  try {
    const found: unknown = JSON.parse(new TextDecoder().decode(data));
    if (found && typeof found === "object") return found as Record<string, unknown>;
  } catch {
    // as below
  }
  throw new TorchfslError("decode", "a server's answer is not a JSON object");
}

function planOf(data: Bytes): { plan: string; coins: string[]; issuers: unknown } {
  const { plan, coins, issuers } = json(data);
  const isHex = (one: unknown) => typeof one === "string" && /^[0-9a-f]{64}$/.test(one);
  const areCoins = Array.isArray(coins) && coins.every(isHex);
  if (typeof plan !== "string" || !areCoins) {
    throw new TorchfslError("decode", "a server's answer holds no plan");
  }
  return { plan, coins, issuers };
}
