/** What a client demands of a plan, whatever its owner says: floors, as `torchfsl.ClientPolicy`. */
import { isWithinBound } from "./bounds.js";
import { type Bytes, frame, hex, sha256, unhex, utf8 } from "./bytes.js";
import type { CorePlan } from "./core.js";
import { TorchfslError } from "./errors.js";

export interface Policy {
  /** The servers' sealing keys in hexadecimal: `plan.server_keys`. Give these, or `plans`. */
  keys?: readonly [string, string];
  /** Digests in hexadecimal of the only plans allowed. */
  plans?: readonly string[];
  /** Digests of the admission files allowed, as `torchfsl doctor` prints them. Default: any. */
  issuers?: readonly string[];
  /** Every tree has a check word and every answer a tag. Default: true. */
  verified?: boolean;
  /** Seeds and answers are readable by one server only. Default: true. */
  sealed?: boolean;
  /** The hash seed was made by both servers' coins. Default: true. */
  jointCoin?: boolean;
  /** Fewest reports that a round may open. Default: 2. */
  minClients?: number;
  /** Fewest clients behind a position that is opened. Default: 1. */
  minContributors?: number;
  /** Most positions that one segment may ask of a client. Default: any. */
  maxK?: number;
  /** Lanes that may be opened: `none`, `count`, `weight`. Default: all. */
  lanes?: readonly string[];
  /** Least noise over sensitivity in a round, against one server. Default: 0. */
  noiseMultiplier?: number;
  /** Most rounds that the plan may open, and it must say how many. Default: any. */
  maxRounds?: number;
}

const KNOWN: Record<keyof Policy, true> = {
  keys: true, plans: true, verified: true, sealed: true, jointCoin: true, minClients: true,
  minContributors: true, maxK: true, lanes: true, noiseMultiplier: true, maxRounds: true,
  issuers: true,
};

/** Refuse a policy that has unknown names or pins no server. */
export function checkPolicy(policy: Policy): void {
  const unknown = Object.keys(policy).filter((name) => !(name in KNOWN));
  if (unknown.length) invalid(`unknown floors ${unknown}; known: ${Object.keys(KNOWN)}`);
  if (!policy.keys && !policy.plans?.length) invalid("it pins no server: give keys, or plans");
  const { issuers = ["any"] } = policy;
  if (!(Array.isArray(issuers) && issuers.length)) {
    invalid("issuers lists no digests: see torchfsl doctor");
  }
  const { minClients = 2, minContributors = 1, maxK = 0, maxRounds = 0 } = policy;
  const whole = [minClients - 1, minContributors - 1, maxK, maxRounds];
  const isWhole = whole.every((value) => Number.isSafeInteger(value) && value >= 0);
  if (!isWhole || !((policy.noiseMultiplier ?? 0) >= 0)) {
    invalid("minClients and minContributors are at least 1, other floors are not negative");
  }
}

/** Throw `below-policy` for a plan below a floor. */
export async function checkPlan(
  policy: Policy,
  plan: CorePlan,
  coins: readonly string[],
): Promise<void> {
  const { keys, plans, minClients = 2, minContributors = 1, lanes, noiseMultiplier = 0 } = policy;
  const { fields } = plan;
  const [most, least] = [policy.maxRounds || Infinity, policy.maxRounds ? 1 : 0];
  demand(fields.min_clients >= minClients, "min_clients", fields.min_clients);
  demand(fields.min_contributors >= minContributors, "min_contributors", fields.min_contributors);
  demand(fields.max_rounds >= least && fields.max_rounds <= most, "max_rounds", fields.max_rounds);
  demand(!lanes || lanes.includes(fields.lane), "lane", fields.lane);
  for (const one of fields.segments.filter((segment) => segment.policy !== "dense")) {
    const isTagged = one.check_bytes > 0 && (!one.retrieve || one.tag_bytes > 0);
    demand(policy.verified === false || isTagged, "check_bytes or tag_bytes", 0);
    demand(one.k_max <= (policy.maxK || Infinity), "k_max", one.k_max);
    const fits = !one.num_bins || isWithinBound(one.m, one.k_max, one.theta, one.stash);
    demand(fits || !!plans?.length, "num_bins", `${one.num_bins}, too few for k_max`);
  }
  const noise = multiplier(plan);
  demand(noise >= noiseMultiplier, "noise over sensitivity", noise);
  const known = fields.server_keys;
  demand(policy.sealed === false || known.length === 2, "server_keys", "none");
  demand(!keys || String(keys) === String(known), "server_keys", known);
  demand(!plans?.length || plans.includes(plan.digest), "digest", plan.digest);
  if (coins.length || policy.jointCoin !== false) {
    const seed = coins.length === 2 ? await seedOf(plan, coins.map(unhex)) : "";
    demand(seed === fields.hash_seed, "hash_seed", seed ? "not of the coins" : "without coins");
  }
}

/** Throw `below-policy` for a server with an admission file that the policy does not allow. */
export function checkIssuers({ issuers }: Policy, party: number, digest: unknown = "none"): void {
  if (!issuers || issuers.some((d) => d === digest)) return;
  const why = `server ${party} has admission file ${digest}, expected ${issuers}: ask its operator`;
  throw new TorchfslError("below-policy", why);
}

/** Noise over sensitivity in one round, against one server. */
function multiplier({ fields }: CorePlan): number {
  const { lane, l2_bound, max_weight, noise_sigma, lane_sigma } = fields;
  const perTree = fields.segments.filter((one) => one.policy !== "dense");
  const dense = lane === "weight" ? fields.segments.length - perTree.length : 0;
  const counted = perTree.reduce((sum, one) => sum + one.k_max, dense);
  const lanes = lane === "none" ? 0 : Math.sqrt(counted) * max_weight;
  const values = noise_sigma && (l2_bound * max_weight) / noise_sigma;
  const total = values ** 2 + (lane_sigma && lanes / lane_sigma) ** 2;
  return noise_sigma && total ? 1 / Math.sqrt(total) : 0;
}

/** The hash seed that both coins make for this plan. */
async function seedOf(plan: CorePlan, coins: Bytes[]): Promise<string> {
  const { hash_seed: seed } = plan.fields;
  const zeros = `"hash_seed":"${"0".repeat(seed.length)}"`;
  const template = await sha256(utf8(plan.text.replace(`"hash_seed":"${seed}"`, zeros)));
  return hex(await sha256(frame(utf8("torchfsl coin"), utf8("seed"), template, ...coins)));
}

function demand(isMet: boolean, field: string, have: unknown): void {
  if (isMet) return;
  throw new TorchfslError("below-policy", `the plan's ${field} is ${have}, outside the policy`);
}

function invalid(why: string): never {
  throw new TorchfslError("invalid-policy", `the policy is not valid: ${why}`);
}
