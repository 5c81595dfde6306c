//! Jobs that wait for a slot: by priority, then fairly by client.

use std::collections::{HashMap, VecDeque};

use super::job::SequenceId;

/// Tokens that a client gains in a round.
const QUANTUM: i64 = 512;

/// Clients without waiting jobs whose credits and debts are remembered. Names of clients come from outside, and their
/// number has no limit.
const REMEMBERED: usize = 256;

/// Waiting jobs.
///
/// Within a priority, clients take turns by deficit round-robin: each round a client gains a quantum of tokens, and it pays
/// for the tokens that are computed for it. A client with long prompts or many requests does not delay the others.
///
/// A debt outlives the job that made it. The rounds that others gain repay it, whether its client waits or not.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Jobs that were preempted, the oldest first. They come before all others.
    preempted: Vec<(u64, SequenceId)>,
    /// Jobs that were preempted and whose clients do not read. They do not wait for a slot.
    parked: Vec<(u64, SequenceId)>,
    /// Clients that wait, and some that have waited.
    clients: HashMap<u64, Client>,
    clock: u64,
    waiting: usize,
}

#[derive(Debug)]
struct Client {
    /// Tokens that it may have computed; below zero, those that it owes.
    deficit: i64,
    /// Higher priorities first, and the same in the order in which they came.
    jobs: VecDeque<Waiting>,
    /// When its last job was admitted, or when it came: the earliest of those that can pay has the next turn.
    served: u64,
    /// When it last sent a job or was charged.
    used: u64,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    sequence: SequenceId,
    priority: i32,
    cost: usize,
}

impl Client {
    /// Tokens that it needs before its next job can be admitted, if that has this priority.
    fn missing(&self, priority: i32) -> Option<i64> {
        let head = self.jobs.front().filter(|head| head.priority == priority)?;
        Some(head.cost.min(QUANTUM as usize) as i64 - self.deficit)
    }
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
        let client = self.client(client);
        let at = client.jobs.partition_point(|other| other.priority >= priority);
        client.jobs.insert(at, Waiting { sequence, priority, cost });
        self.waiting += 1;
    }

    /// Returns a job that was admitted as number `order` to the front.
    pub(crate) fn push_preempted(&mut self, order: u64, sequence: SequenceId) {
        let at = self.preempted.partition_point(|(other, _)| *other < order);
        self.preempted.insert(at, (order, sequence));
    }

    /// Puts a job that was admitted as number `order` aside.
    pub(crate) fn park(&mut self, order: u64, sequence: SequenceId) {
        self.parked.push((order, sequence));
    }

    /// Returns the jobs that were put aside and are ready to the front.
    pub(crate) fn resume(&mut self, is_ready: impl Fn(SequenceId) -> bool) {
        let mut at = 0;
        while let Some((order, sequence)) = self.parked.get(at).copied() {
            if is_ready(sequence) {
                self.parked.remove(at);
                self.push_preempted(order, sequence);
            } else {
                at += 1;
            }
        }
    }

    /// The job whose turn it is.
    pub(crate) fn peek(&mut self) -> Option<SequenceId> {
        if let Some((_, sequence)) = self.preempted.first() {
            return Some(*sequence);
        }
        let client = self.choose()?;
        Some(self.clients.get(&client)?.jobs.front()?.sequence)
    }

    /// Removes the job that [`Queue::peek`] returns.
    pub(crate) fn pop(&mut self) {
        if !self.preempted.is_empty() {
            self.preempted.remove(0);
            return;
        }
        self.clock += 1;
        let chosen = self.choose().and_then(|client| self.clients.get_mut(&client));
        if let Some(client) = chosen
            && client.jobs.pop_front().is_some()
        {
            client.served = self.clock;
            self.waiting -= 1;
            self.forget();
        }
    }

    /// Removes a job that no longer waits.
    pub(crate) fn remove(&mut self, sequence: SequenceId) {
        self.preempted.retain(|(_, other)| *other != sequence);
        self.parked.retain(|(_, other)| *other != sequence);
        for client in self.clients.values_mut() {
            let before = client.jobs.len();
            client.jobs.retain(|job| job.sequence != sequence);
            self.waiting -= before - client.jobs.len();
        }
        self.forget();
    }

    /// Charges a client for computed tokens. They cost nothing while no job waits, since they delay nobody then.
    pub(crate) fn charge(&mut self, client: u64, tokens: usize) {
        if self.is_empty() {
            return;
        }
        let known = self.clients.len();
        self.client(client).deficit -= tokens as i64;
        if self.clients.len() > known {
            self.forget();
        }
    }

    fn client(&mut self, id: u64) -> &mut Client {
        self.clock += 1;
        let now = self.clock;
        let new = || Client { deficit: 0, jobs: VecDeque::new(), served: now, used: now };
        let client = self.clients.entry(id).or_insert_with(new);
        client.used = now;
        client
    }

    /// The client whose turn it is. If none can pay, there are rounds until one can.
    fn choose(&mut self) -> Option<u64> {
        let heads = self.clients.values().filter_map(|client| client.jobs.front());
        let highest = heads.map(|head| head.priority).max()?;
        let least = self.clients.values().filter_map(|client| client.missing(highest)).min()?;
        if least > 0 {
            self.gain(highest, (least + QUANTUM - 1) / QUANTUM * QUANTUM);
        }
        let can_pay = |client: &Client| client.missing(highest).is_some_and(|missing| missing <= 0);
        let able = self.clients.iter().filter(|(_, client)| can_pay(client));
        able.min_by_key(|(_, client)| client.served).map(|(id, _)| *id)
    }

    /// Clients whose next job has this priority gain tokens. Those that do not compete with them repay as much of their
    /// debts, but gain no credit: it would grow without limit.
    fn gain(&mut self, priority: i32, tokens: i64) {
        self.clients.retain(|_, client| {
            match client.missing(priority) {
                Some(_) => client.deficit += tokens,
                None if client.deficit < 0 => client.deficit = (client.deficit + tokens).min(0),
                None => {}
            }
            !client.jobs.is_empty() || client.deficit < 0
        });
    }

    /// Forgets clients without jobs that were not used for the longest time, if there are too many.
    fn forget(&mut self) {
        let idle = self.clients.values().filter(|client| client.jobs.is_empty()).count();
        for _ in REMEMBERED..idle {
            let idle = self.clients.iter().filter(|(_, client)| client.jobs.is_empty());
            let oldest = idle.min_by_key(|(_, client)| client.used).map(|(id, _)| *id);
            oldest.and_then(|id| self.clients.remove(&id));
        }
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

    #[test]
    fn higher_priorities_of_one_client_come_first() {
        let mut queue = Queue::default();
        for (id, priority) in [0, 5, 0, 5, -1, 7, 0].into_iter().enumerate() {
            queue.push(SequenceId(id as u64), 1, priority, 10);
        }
        // Another client's are between them.
        queue.push(SequenceId(10), 2, 6, 10);
        queue.push_preempted(4, SequenceId(11));
        let order: Vec<u64> = std::iter::from_fn(|| next(&mut queue)).collect();
        assert_eq!(order, [11, 5, 10, 1, 3, 0, 2, 6, 4]);
    }

    /// A slot for two clients: the first sends a long prompt, and the next one when that is computed. The second always has
    /// some short ones.
    #[test]
    fn a_client_with_one_job_at_a_time_pays_for_its_tokens() {
        const COSTS: [usize; 2] = [8192, 64];
        let mut queue = Queue::default();
        let mut computed = [0; 2];
        let send = |queue: &mut Queue, client: usize| {
            queue.push(SequenceId(client as u64), client as u64, 0, COSTS[client]);
        };
        [0, 1, 1, 1].into_iter().for_each(|client| send(&mut queue, client));
        while computed[0] + computed[1] < 1_000_000 {
            let client = next(&mut queue).unwrap() as usize;
            for _ in 0..COSTS[client] / 64 {
                queue.charge(client as u64, 64);
            }
            computed[client] += COSTS[client];
            send(&mut queue, client);
        }
        let share = computed[0] as f64 / computed[1] as f64;
        assert!((0.95..1.05).contains(&share), "{computed:?}");
    }

    #[test]
    fn others_repay_a_debt_and_the_client_is_forgotten() {
        let mut queue = Queue::default();
        queue.push(SequenceId(0), 7, 0, 5000);
        queue.push(SequenceId(1), 8, 0, 100);
        assert_eq!(next(&mut queue), Some(0));
        queue.charge(7, 5000);
        let mut computed = 0;
        while queue.clients.contains_key(&7) {
            queue.push(SequenceId(1), 8, 0, 100);
            assert_eq!(next(&mut queue), Some(1));
            queue.charge(8, 100);
            computed += 100;
            assert!(computed < 10_000, "the debt is not repaid: {:?}", queue.clients);
        }
        assert!(computed > 4000, "{computed}");
        // While nobody waits, tokens are free.
        let mut queue = Queue::default();
        queue.push(SequenceId(0), 7, 0, 5000);
        assert_eq!(next(&mut queue), Some(0));
        queue.charge(7, 5000);
        assert!(queue.clients.values().all(|client| client.deficit >= 0));
    }

    #[test]
    fn clients_that_are_remembered_are_limited() {
        let mut queue = Queue::default();
        queue.push(SequenceId(0), 0, 9, 10);
        for client in 1..2000 {
            queue.push(SequenceId(client), client, 0, 10);
        }
        assert_eq!(next(&mut queue), Some(0));
        queue.charge(0, 1_000_000);
        for client in 1..2000 {
            // One that is charged is not the least recently used.
            queue.charge(0, 1);
            next(&mut queue);
            queue.charge(10_000 + client, 10);
            let idle = queue.clients.values().filter(|client| client.jobs.is_empty()).count();
            assert!(idle <= REMEMBERED, "{idle} clients");
        }
        assert!(queue.clients.len() <= REMEMBERED && queue.clients.contains_key(&0));
    }
}
