/** What a client remembers, so that one that is reloaded sends the same bytes or nothing. */

/** A message on its way. */
export interface Sent {
  party: 0 | 1;
  method: "Retrieve" | "Submit";
  body: Uint8Array<ArrayBuffer>;
}

/** Of one task and client. */
export interface Entry {
  /** Digest of the plan under which `last` counts. */
  plan: string;
  /** The highest round that was begun; -1 before the first. */
  last: number;
  /** Rounds in which a report was sent. */
  sent: number[];
  /** The report on its way, until both servers have it. */
  report?: Sent[];
}

/** Where entries are kept. Implement it over any store that has transactions. */
export interface Outbox {
  /**
   * Read an entry and replace it, in one step that no other page or process comes between. Once it
   * returns, the new entry survives a crash. If `edit` throws, nothing changes.
   */
  change(key: string, edit: (entry: Entry | undefined) => Entry): Promise<Entry>;
}

/** Forgets at the end of the page or process: for tests, and where no report is to outlive it. */
export function memoryOutbox(): Outbox {
  const entries = new Map<string, Entry>();
  return {
    async change(key, edit) {
      const entry = edit(entries.get(key));
      entries.set(key, entry);
      return entry;
    },
  };
}

/** In IndexedDB, shared by all pages of the origin. */
export function pageOutbox(name = "torchfsl-outbox"): Outbox {
  const store = "entries";
  const opened = new Promise<IDBDatabase>((resolve, reject) => {
    const asked = indexedDB.open(name, 1);
    asked.onupgradeneeded = () => asked.result.createObjectStore(store);
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });
  opened.catch(() => undefined); // `change` throws it
  return {
    async change(key, edit) {
      const transaction = (await opened).transaction(store, "readwrite", { durability: "strict" });
      const entries = transaction.objectStore(store);
      const found: IDBRequest<Entry | undefined> = entries.get(key);
      let entry: Entry | undefined, thrown: unknown;
      found.onsuccess = () => {
        try {
          entry = edit(found.result);
          entries.put(entry, key);
        } catch (error) {
          thrown = error;
          transaction.abort();
        }
      };
      return new Promise((resolve, reject) => {
        transaction.oncomplete = () => resolve(entry!);
        transaction.onabort = () => reject(thrown ?? transaction.error);
      });
    },
  };
}
