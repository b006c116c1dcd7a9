/** Bytes as WebCrypto takes them. */
export type Bytes = Uint8Array<ArrayBuffer>;

export const utf8 = (text: string): Bytes => new TextEncoder().encode(text);

export const hex = (data: Uint8Array): string =>
  Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join("");

/** Of what is hexadecimal; NaN becomes 0. */
export const unhex = (text: string): Bytes =>
  Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));

export const base64 = (data: Uint8Array): string => btoa(String.fromCharCode(...data));

/** Base64url without padding. */
export const base64url = (data: Uint8Array): string =>
  base64(data).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");

export const sha256 = async (data: BufferSource): Promise<Bytes> =>
  new Uint8Array(await crypto.subtle.digest("SHA-256", data));

/** Eight bytes, little-endian. */
export function le64(number: number): Bytes {
  const out = new Uint8Array(8);
  new DataView(out.buffer).setBigUint64(0, BigInt(number), true);
  return out;
}

/** The parts, each behind its length in eight bytes. */
export const frame = (...parts: Bytes[]): Bytes =>
  concat(parts.flatMap((part) => [le64(part.length), part]));

export function concat(parts: Bytes[]): Bytes {
  const out = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}
