// A conversation is a tree of messages. What is shown is one path through it: at each message the chosen answer, at each
// answer the chosen next message. Editing and regenerating add siblings, so nothing is lost.

const newId = () => {
  const bytes = crypto.getRandomValues(new Uint8Array(9));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
};

/** A conversation without messages. */
export function newConversation(settings) {
  const now = Date.now();
  return {
    id: newId(), title: "", created: now, updated: now, settings: structuredClone(settings),
    nodes: {}, children: [], chosen: null,
  };
}

/** A node of the tree, or the conversation itself, which is its root. */
const nodeOf = (conversation, id) => (id === null ? conversation : conversation.nodes[id]);

/** Adds a message below another one (`null`: the first) and chooses it. */
export function add(conversation, parent, message) {
  const node = { id: newId(), parent, children: [], chosen: null, created: Date.now(), ...message };
  conversation.nodes[node.id] = node;
  const above = nodeOf(conversation, parent);
  above.children.push(node.id);
  above.chosen = node.id;
  return node;
}

/** The messages that are shown, first to last. */
export function path(conversation) {
  const nodes = [];
  for (let id = conversation.chosen; id !== null && conversation.nodes[id]; id = conversation.nodes[id].chosen) {
    nodes.push(conversation.nodes[id]);
  }
  return nodes;
}

/** The messages before and up to one. */
export function pathTo(conversation, id) {
  const nodes = [];
  for (let node = conversation.nodes[id]; node; node = conversation.nodes[node.parent]) nodes.unshift(node);
  return nodes;
}

/** The siblings of a message, and its place among them. */
export function siblings(conversation, node) {
  const all = nodeOf(conversation, node.parent).children;
  return { all, at: all.indexOf(node.id) };
}

/** Chooses the sibling `step` places on. */
export function choose(conversation, node, step) {
  const { all, at } = siblings(conversation, node);
  const next = all[at + step];
  if (next !== undefined) nodeOf(conversation, node.parent).chosen = next;
}

/** Whether an answer was refused, cut off or stopped before anything of it came. */
const isMissing = ({ role, state, content, calls }) =>
  role === "assistant" && (state === "failed" || state === "stopped") && content === "" && !calls?.length;

/** The messages of a request, up to a node. */
export function requestMessages(conversation, id) {
  const messages = [];
  const system = conversation.settings.system.trim();
  if (system !== "") messages.push({ role: "system", content: system });
  for (const node of id === null ? [] : pathTo(conversation, id)) {
    if (isMissing(node)) continue;
    const last = messages.at(-1);
    // Many chat templates refuse two messages of one role in a row, so one that has no answer begins the next.
    if (node.role === "user" && last?.role === "user") last.content += `\n\n${node.content}`;
    else if (node.role === "user") messages.push({ role: "user", content: node.content });
    else if (node.role === "tool") messages.push({ role: "tool", tool_call_id: node.callId, content: node.content });
    else if (node.calls?.length) {
      const calls = node.calls.map(({ id, name, arguments: text }) =>
        ({ id, type: "function", function: { name, arguments: text } }));
      messages.push({ role: "assistant", content: node.content, tool_calls: calls });
    } else messages.push({ role: "assistant", content: node.content });
  }
  return messages;
}

/** A title from the first message. */
export function titleOf(text) {
  const line = text.trim().split("\n", 1)[0].slice(0, 200);
  const short = [...line].slice(0, 60).join("");
  return short.length < line.length ? `${short.trimEnd()}…` : short;
}
