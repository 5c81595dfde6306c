// Conversations in the browser: IndexedDB, since one answer may be larger than all that localStorage holds. What the list
// shows is kept apart from the messages, so that the list does not load them.

const NAME = "gyrus";
const VERSION = 1;

const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

export class Store {
  #database = null;
  // Where a browser has no database, such as in some private windows, conversations last until the page is left.
  #memory = new Map();
  #channel = null;
  /** Called with the id of a conversation that another tab has changed. */
  onchange = () => {};

  async open() {
    try {
      const request = indexedDB.open(NAME, VERSION);
      request.onupgradeneeded = () => {
        request.result.createObjectStore("heads", { keyPath: "id" });
        request.result.createObjectStore("conversations", { keyPath: "id" });
      };
      this.#database = await done(request);
      this.#channel = new BroadcastChannel(NAME);
      this.#channel.onmessage = ({ data }) => this.onchange(data);
    } catch {
      this.#database = null;
    }
    return this.#database !== null;
  }

  /** Ids, titles and times of all conversations, the last changed first. */
  async list() {
    const heads = this.#database
      ? await done(this.#database.transaction("heads").objectStore("heads").getAll())
      : [...this.#memory.values()].map(head);
    return heads.sort((a, b) => b.updated - a.updated);
  }

  async load(id) {
    if (!this.#database) return structuredClone(this.#memory.get(id) ?? null);
    return (await done(this.#database.transaction("conversations").objectStore("conversations").get(id))) ?? null;
  }

  async save(conversation) {
    if (!this.#database) {
      this.#memory.set(conversation.id, structuredClone(conversation));
      return;
    }
    await this.#write((heads, conversations) => {
      heads.put(head(conversation));
      conversations.put(conversation);
    });
    this.#channel.postMessage(conversation.id);
  }

  async remove(id) {
    this.#memory.delete(id);
    if (!this.#database) return;
    await this.#write((heads, conversations) => {
      heads.delete(id);
      conversations.delete(id);
    });
    this.#channel.postMessage(id);
  }

  #write(change) {
    return new Promise((resolve, reject) => {
      const transaction = this.#database.transaction(["heads", "conversations"], "readwrite");
      transaction.oncomplete = () => resolve();
      transaction.onabort = transaction.onerror = () => reject(transaction.error);
      change(transaction.objectStore("heads"), transaction.objectStore("conversations"));
    });
  }
}

const head = ({ id, title, updated }) => ({ id, title, updated });

/** Small settings of this browser. */
export const local = {
  get(name, otherwise) {
    try {
      const text = localStorage.getItem(`gyrus.${name}`);
      return text === null ? otherwise : JSON.parse(text);
    } catch {
      return otherwise;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(`gyrus.${name}`, JSON.stringify(value));
    } catch {
      // It lasts until the page is left.
    }
  },
};
