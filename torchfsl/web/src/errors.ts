/** Why a call failed. `code` is stable, see docs/error-codes.md; the text is for people. */
export class TorchfslError extends Error {
  override name = "TorchfslError";

  /**
   * @param code as `below-policy`.
   * @param message what is wrong, without private rows or values.
   * @param status of the HTTP answer; 0 where none came, and for errors of this side.
   */
  constructor(
    readonly code: string,
    message: string,
    readonly status = 0,
  ) {
    super(message);
  }
}

/** The same bytes may be sent again after these. */
export function isPassing(error: unknown): boolean {
  return (
    error instanceof TorchfslError &&
    (error.code === "not-ready" || error.status === 429 || error.status >= 500)
  );
}

/** A server has refused these bytes for good. */
export function isFinal(error: unknown): boolean {
  const status = error instanceof TorchfslError ? error.status : 0;
  return status >= 400 && status !== 401 && !isPassing(error);
}
