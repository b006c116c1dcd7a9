/** Take part in rounds of torchfsl from a web page, see docs/web-client.md. */
export type { Connection, Fetched, Round, Settings } from "./client.js";
export { connect } from "./client.js";
export type { Core, CorePlan, Part, PlanFields, Reals, Rows, Segment } from "./core.js";
export { loadCore } from "./core.js";
export { TorchfslError } from "./errors.js";
export { type Entry, type Outbox, type Sent, memoryOutbox, pageOutbox } from "./outbox.js";
export type { Policy } from "./policy.js";
export type { TokenSource } from "./server.js";
