//! Prompts that edit code, and prompts for novel text.

/// What a prompt asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Set {
    Edit,
    Novel,
}

impl Set {
    pub(super) fn name(self) -> &'static str {
        match self {
            Set::Edit => "edit",
            Set::Novel => "novel",
        }
    }
}

/// Set, name and text of each prompt.
pub(super) const PROMPTS: [(Set, &str, &str); 8] = [
    (
        Set::Edit,
        "rename",
        "Rename the function `total` to `sum_of_prices` in this Python file. Answer with the whole file and nothing else.

```python
class Item:
    def __init__(self, name, price, quantity):
        self.name = name
        self.price = price
        self.quantity = quantity

    def cost(self):
        return self.price * self.quantity


def total(items):
    result = 0
    for item in items:
        result += item.cost()
    return result


def average(items):
    if not items:
        return 0
    return total(items) / len(items)


def most_expensive(items):
    best = None
    for item in items:
        if best is None or item.price > best.price:
            best = item
    return best


def report(items):
    lines = []
    for item in items:
        lines.append(f\"{item.name}: {item.quantity} x {item.price} = {item.cost()}\")
    lines.append(f\"total: {total(items)}\")
    lines.append(f\"average: {average(items)}\")
    return \"\\n\".join(lines)
```",
    ),
    (
        Set::Edit,
        "type hints",
        "Add type hints to the parameters of `__init__` in this Python file. Answer with the whole file and nothing else.

```python
import json


class Account:
    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance
        self.history = []

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError(\"the amount must be positive\")
        self.balance += amount
        self.history.append((\"deposit\", amount))

    def withdraw(self, amount):
        if amount <= 0:
            raise ValueError(\"the amount must be positive\")
        if amount > self.balance:
            raise ValueError(\"the balance is too low\")
        self.balance -= amount
        self.history.append((\"withdraw\", amount))

    def transfer(self, other, amount):
        self.withdraw(amount)
        other.deposit(amount)

    def to_json(self):
        return json.dumps({\"owner\": self.owner, \"balance\": self.balance, \"history\": self.history})
```",
    ),
    (
        Set::Edit,
        "constant",
        "Change the limit from 100 to 250 in this Rust file. Answer with the whole file and nothing else.

```rust
use std::collections::HashMap;

const LIMIT: usize = 100;

#[derive(Debug, Default)]
pub struct Cache {
    entries: HashMap<String, String>,
    order: Vec<String>,
}

impl Cache {
    pub fn new() -> Cache {
        Cache::default()
    }

    pub fn get(&self, key: &str) -> Option<&String> {
        self.entries.get(key)
    }

    pub fn insert(&mut self, key: String, value: String) {
        if self.order.len() >= LIMIT {
            let oldest = self.order.remove(0);
            self.entries.remove(&oldest);
        }
        self.order.push(key.clone());
        self.entries.insert(key, value);
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
```",
    ),
    (
        Set::Edit,
        "log",
        "Add a `console.log` at the beginning of `submit` in this JavaScript file. Answer with the whole file and nothing else.

```javascript
const form = document.querySelector('#order-form');
const list = document.querySelector('#order-list');
const message = document.querySelector('#message');

function validate(order) {
  if (!order.name) {
    return 'the name is missing';
  }
  if (order.quantity < 1) {
    return 'the quantity must be at least 1';
  }
  return null;
}

async function submit(order) {
  const problem = validate(order);
  if (problem) {
    message.textContent = problem;
    return;
  }
  const response = await fetch('/orders', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(order),
  });
  if (!response.ok) {
    message.textContent = 'the order was refused';
    return;
  }
  const item = document.createElement('li');
  item.textContent = `${order.name}: ${order.quantity}`;
  list.appendChild(item);
}
```",
    ),
    (
        Set::Edit,
        "field",
        "Add a field `email` to the table `users` in this SQL file. Answer with the whole file and nothing else.

```sql
CREATE TABLE users (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
);

CREATE TABLE products (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    price INTEGER NOT NULL,
    stock INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    user_id INTEGER NOT NULL REFERENCES users (id),
    product_id INTEGER NOT NULL REFERENCES products (id),
    quantity INTEGER NOT NULL,
    created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
);

CREATE INDEX orders_by_user ON orders (user_id);
CREATE INDEX orders_by_product ON orders (product_id);
```",
    ),
    (Set::Novel, "story", "Tell a story about a lighthouse keeper who finds a letter from the future."),
    (Set::Novel, "letter", "Write a letter from a grandmother to her grandson about the year she lived by the sea."),
    (Set::Novel, "essay", "Explain to a curious friend why cities grew along rivers and what changed with the railway."),
];
