/** A recommender that learns in pages: a vector for each user and item, a linear tower for each
 *  side, and the logistic loss of their product. `?user=7&likes=3,14,15` says whose page it is. */
import { type Fetched, type Part, type PlanFields, connect, loadCore } from "../../dist/index.js";

interface Settings {
  servers: [string, string];
  keys: [string, string];
}

interface Sample {
  item: number;
  liked: number; // 1 or 0
}

const [RATE, EPOCHS, OTHERS] = [0.02, 5, 8];
const page = new URLSearchParams(location.search);
const user = Number(page.get("user") ?? 7);
const likes = (page.get("likes") ?? "3,14,15").split(",").map(Number);

async function ask<Answer>(path: string, body?: object): Promise<Answer> {
  const answer = await fetch(path, body && { method: "POST", body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${path}: status ${answer.status}`);
  return (await answer.json()) as Answer;
}

const say = (text: string) => document.querySelector("output")!.append(`${text}\n`);
addEventListener("error", ({ message }) => say(message));

/** Where the rows of a table begin among the positions of its segment. */
function placeOf(plan: PlanFields, table: string) {
  for (const { name, tensors } of plan.segments) {
    let first = 0;
    for (const { name: tensor, shape } of tensors) {
      if (tensor === table) return { segment: name, first, rows: shape[0]! };
      first += shape[0]!;
    }
  }
  throw new Error(`the plan has no table ${table}`);
}

/** What the user likes, and as many again that come at random. */
function draw(items: number): Sample[] {
  const others = Array.from({ length: OTHERS }, () => Math.floor(Math.random() * items));
  const drawn = [...new Set(others)].filter((item) => !likes.includes(item));
  const labelled = (chosen: number[], liked: number) => chosen.map((item) => ({ item, liked }));
  return [...labelled(likes, 1), ...labelled(drawn, 0)];
}

type Vector = Float32Array;
const dot = (a: Vector, b: Vector) => a.reduce((sum, x, i) => sum + x * b[i]!, 0);

/** Matrix times vector, or its transpose times vector. */
function times(matrix: Vector, x: Vector, transposed = false): Vector {
  const n = x.length;
  const at = (i: number, j: number) => matrix[transposed ? j * n + i : i * n + j]!;
  return x.map((_, i) => x.reduce((sum, value, j) => sum + at(i, j) * value, 0));
}

/** Add `step` times the outer product of a and b. */
function addOuter(matrix: Vector, step: number, a: Vector, b: Vector): void {
  a.forEach((x, i) => b.forEach((y, j) => (matrix[i * b.length + j]! += step * x * y)));
}

/** Steps of SGD on vectors u of the user, v of the items and both towers, in place. The loss. */
function train(u: Vector, v: Vector[], [A, B]: [Vector, Vector], samples: Sample[]): number {
  let loss = 0;
  for (let epoch = 0; epoch < EPOCHS; epoch++) {
    loss = 0;
    samples.forEach(({ liked }, i) => {
      const [p, q] = [times(A, u), times(B, v[i]!)];
      const score = dot(p, q);
      const step = -RATE * (1 / (1 + Math.exp(-score)) - liked);
      loss += Math.log1p(Math.exp(liked ? -score : score)) / samples.length;
      const [toUser, toItem] = [times(A, q, true), times(B, p, true)];
      addOuter(A, step, q, u);
      addOuter(B, step, p, v[i]!);
      u.forEach((_, j) => (u[j]! += step * toUser[j]!));
      v[i]!.forEach((_, j) => (v[i]![j]! += step * toItem[j]!));
    });
  }
  return loss;
}

const minus = (a: Vector, b: ArrayLike<number>) => a.map((x, i) => x - b[i]!);

/** By how much training changes what was fetched, and the loss. */
function update({ rows, tensors }: Fetched, mine: number, first: number, samples: Sample[]) {
  const { ids, values, width } = rows[users.segment]!;
  const after = Float32Array.from(values);
  const row = (id: number) => after.subarray(ids.indexOf(id) * width).subarray(0, width);
  const names = ["user_tower.weight", "item_tower.weight"];
  const before = names.map((name) => tensors[name]!.values);
  const towers = before.map((one) => Float32Array.from(one)) as [Vector, Vector];
  const loss = train(row(mine), samples.map(({ item }) => row(first + item)), towers, samples);
  const rest = towers.flatMap((one, i) => [...minus(one, before[i]!)]);
  const parts: Record<string, Part> = {
    [users.segment]: { ids, values: minus(after, values) },
    rest: { values: Float32Array.from(rest) },
  };
  return { parts, loss };
}

const { servers: urls, keys } = await ask<Settings>("/settings.json");
const servers = await connect(urls, {
  core: await loadCore(),
  token: (wanted) => ask<[string, string]>("/token", { ...wanted, user }),
  policy: { keys, minClients: 2 },
});
const plan = servers.plan.fields;
const [users, items] = [placeOf(plan, "users.weight"), placeOf(plan, "items.weight")];
say(`connected as client ${servers.client}`);
for await (const round of servers.rounds()) {
  const samples = draw(items.rows);
  const mine = users.first + user;
  const wanted = [mine, ...samples.map(({ item }) => items.first + item)];
  const fetched = await round.fetch({ [users.segment]: wanted });
  const { parts, loss } = update(fetched, mine, items.first, samples);
  await round.submit(parts);
  say(`round ${round.number}: sent, loss ${loss.toFixed(3)}`);
}
