//! Jobs that wait for a slot: by priority, then fairly by client.

use std::collections::VecDeque;

use super::job::SequenceId;

/// Tokens that a client gains when its turn comes.
const QUANTUM: i64 = 512;

/// Waiting jobs.
///
/// Within a priority, clients take turns by deficit round-robin: a client gains a quantum of tokens each turn, and pays for
/// the tokens that are computed for it. A client with long prompts or many requests does not delay the others.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Jobs that were preempted, the oldest first. They come before all others.
    preempted: Vec<(u64, SequenceId)>,
    clients: Vec<Client>,
    /// Whose turn it is.
    turn: usize,
    waiting: usize,
}

#[derive(Debug)]
struct Client {
    id: u64,
    /// Tokens that it may have computed.
    deficit: i64,
    jobs: VecDeque<Waiting>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    sequence: SequenceId,
    priority: i32,
    cost: usize,
}

impl Queue {
    /// Waiting jobs, without preempted ones.
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0 && self.preempted.is_empty()
    }

    /// Adds a job that computes `cost` tokens.
    pub(crate) fn push(&mut self, sequence: SequenceId, client: u64, priority: i32, cost: usize) {
        let at = self.client(client);
        self.clients[at].jobs.push_back(Waiting { sequence, priority, cost });
        self.waiting += 1;
    }

    /// Returns a job that was admitted as number `order` to the front.
    pub(crate) fn push_preempted(&mut self, order: u64, sequence: SequenceId) {
        let at = self.preempted.partition_point(|(other, _)| *other < order);
        self.preempted.insert(at, (order, sequence));
    }

    /// The job whose turn it is.
    pub(crate) fn peek(&mut self) -> Option<SequenceId> {
        if let Some((_, sequence)) = self.preempted.first() {
            return Some(*sequence);
        }
        let highest = self.heads().map(|(_, head)| head.priority).max()?;
        loop {
            for step in 0..self.clients.len() {
                let at = (self.turn + step) % self.clients.len();
                let client = &self.clients[at];
                let Some(head) = client.jobs.front().filter(|head| head.priority == highest) else {
                    continue;
                };
                if client.deficit >= head.cost.min(QUANTUM as usize) as i64 {
                    self.turn = at;
                    return Some(head.sequence);
                }
            }
            // Nobody can pay: all gain the same.
            for client in self.clients.iter_mut().filter(|client| !client.jobs.is_empty()) {
                client.deficit += QUANTUM;
            }
        }
    }

    /// Removes the job that [`Queue::peek`] returned.
    pub(crate) fn pop(&mut self) {
        if !self.preempted.is_empty() {
            self.preempted.remove(0);
            return;
        }
        let turn = self.turn;
        if self.clients.get_mut(turn).is_some_and(|client| client.jobs.pop_front().is_some()) {
            self.waiting -= 1;
            self.turn = (turn + 1) % self.clients.len();
            self.drop_idle();
        }
    }

    /// Removes a job that no longer waits.
    pub(crate) fn remove(&mut self, sequence: SequenceId) {
        self.preempted.retain(|(_, other)| *other != sequence);
        for client in &mut self.clients {
            let before = client.jobs.len();
            client.jobs.retain(|job| job.sequence != sequence);
            self.waiting -= before - client.jobs.len();
        }
        self.drop_idle();
    }

    /// Charges a client for computed tokens.
    pub(crate) fn charge(&mut self, client: u64, tokens: usize) {
        // A client that was charged while it has no jobs waiting starts with a debt, down to one quantum.
        if let Some(client) = self.clients.iter_mut().find(|known| known.id == client) {
            client.deficit = (client.deficit - tokens as i64).max(-QUANTUM);
        }
    }

    fn client(&mut self, id: u64) -> usize {
        match self.clients.iter().position(|client| client.id == id) {
            Some(at) => at,
            None => {
                self.clients.push(Client { id, deficit: 0, jobs: VecDeque::new() });
                self.clients.len() - 1
            }
        }
    }

    fn heads(&self) -> impl Iterator<Item = (usize, &Waiting)> {
        self.clients.iter().enumerate().filter_map(|(at, client)| Some((at, client.jobs.front()?)))
    }

    /// Forgets clients without jobs: names come from outside, and their number has no limit.
    fn drop_idle(&mut self) {
        let turn = self.clients.get(self.turn).map(|client| client.id);
        self.clients.retain(|client| !client.jobs.is_empty());
        self.turn = turn.and_then(|id| self.clients.iter().position(|c| c.id == id)).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(queue: &mut Queue) -> Option<u64> {
        let SequenceId(id) = queue.peek()?;
        queue.pop();
        Some(id)
    }

    #[test]
    fn clients_take_turns_and_pay_by_tokens() {
        let mut queue = Queue::default();
        // The first client has many jobs, the second one, later.
        (0..5).for_each(|i| queue.push(SequenceId(i), 1, 0, 400));
        queue.push(SequenceId(10), 2, 0, 400);
        let first = next(&mut queue);
        queue.charge(1, 400);
        assert_eq!((first, next(&mut queue)), (Some(0), Some(10)));
        assert_eq!([next(&mut queue), next(&mut queue)], [Some(1), Some(2)]);
        assert_eq!(queue.len(), 2);
    }

    #[test]
    fn priorities_and_preempted_jobs_come_first() {
        let mut queue = Queue::default();
        queue.push(SequenceId(1), 1, 0, 10);
        queue.push(SequenceId(2), 2, 5, 10);
        queue.push_preempted(9, SequenceId(3));
        queue.push_preempted(4, SequenceId(4));
        let order: Vec<u64> = std::iter::from_fn(|| next(&mut queue)).collect();
        assert_eq!(order, [4, 3, 2, 1]);
        assert!(queue.is_empty());
        queue.push(SequenceId(1), 1, 0, 10);
        queue.remove(SequenceId(1));
        assert!(queue.is_empty() && queue.peek().is_none());
    }
}
