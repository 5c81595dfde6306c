//! How many guesses are worth a pass.

use super::{Drafter, MODEL_EVIDENCE};

/// Classes of evidence whose guesses are counted together: 1, 2, 3–4, 5–8, 9–16, 17–32, more; a model.
const CLASSES: usize = 8;
/// How often the next guess is right before anything is known, by class.
const PRIOR: [f32; CLASSES] = [0.15, 0.35, 0.5, 0.65, 0.75, 0.85, 0.9, 0.6];
/// How many guesses the prior stands for, and how many count at most: text changes.
const PRIOR_WEIGHT: f32 = 4.0;
const MOST_COUNTED: f32 = 32.0;
/// A draft is made if it is expected to be this much faster than steps.
const MARGIN: f64 = 1.05;
/// The same while steps are in flight, which must land first.
const MARGIN_IN_FLIGHT: f64 = 1.2;
/// After this many drafts in a row that lost time no more tokens are skipped than before.
const MOST_BACKOFF: u32 = 7;
/// The part of the time of steps that drafts may lose, and the most steps that drafts which gained may be followed by others
/// that lose.
const ALLOWANCE: f64 = 0.02;
const MOST_BALANCE: f64 = 8.0;
/// Steps that it takes to leave the steps and to come back.
const LEAVING: f64 = 0.5;
/// A draft may lose some more after so many guesses in a row that were right, also if nobody asked for them. Those of a
/// model are made at once: somebody chose it.
const TRUSTED: u32 = 5;
const MOST_DEBT: f64 = 1.0;
/// As many guesses in a row that were right announce a draft.
const PROMISING: u32 = 2;

/// The expected times of passes.
#[derive(Clone, Copy)]
pub(crate) struct PassTimes<'a> {
    /// Of all sequences without the draft, in which each gets a token.
    pub(crate) without: f64,
    /// Of all sequences with a draft of this many rows.
    pub(crate) with: &'a dyn Fn(usize) -> f64,
    /// Other sequences that get a token meanwhile.
    pub(crate) others: usize,
    /// Whether numbers of rows other than powers of two are not possible.
    pub(crate) powers_of_two: bool,
}

/// The drafter of a sequence, and what is known of its guesses.
#[derive(Debug)]
pub(crate) struct Speculator {
    drafter: Box<dyn Drafter>,
    rates: [Rate; CLASSES],
    guesses: Vec<u32>,
    /// Tokens without drafts that are to come, and how many drafts in a row have lost time.
    wait: u32,
    losses: u32,
    /// Steps that drafts may lose.
    balance: f64,
    /// The last guesses that were right in a row.
    right: u32,
    /// Drafts have as many guesses as their evidence, whatever that costs: tests of the scheduler do not depend on times.
    #[cfg(test)]
    pub(crate) eager: bool,
}

/// How often the next guess was right.
#[derive(Debug, Clone, Copy)]
struct Rate {
    right: f32,
    all: f32,
}

impl Rate {
    fn add(&mut self, right: bool) {
        if self.all >= MOST_COUNTED {
            self.right *= 0.5;
            self.all *= 0.5;
        }
        self.all += 1.0;
        self.right += f32::from(u8::from(right));
    }

    fn value(&self) -> f64 {
        f64::from(self.right / self.all)
    }
}

fn class(evidence: usize) -> Option<usize> {
    if evidence == MODEL_EVIDENCE {
        return Some(CLASSES - 1);
    }
    let above = evidence.checked_sub(1)?;
    let bits = usize::BITS - above.leading_zeros();
    Some((bits as usize).min(CLASSES - 2))
}

impl Speculator {
    pub(crate) fn new(drafter: Box<dyn Drafter>) -> Speculator {
        Speculator {
            drafter,
            rates: PRIOR.map(|rate| Rate { right: PRIOR_WEIGHT * rate, all: PRIOR_WEIGHT }),
            guesses: Vec::new(),
            wait: 0,
            losses: 0,
            balance: 0.0,
            right: 0,
            #[cfg(test)]
            eager: false,
        }
    }

    /// A token was appended. What the drafter would have guessed is compared with it, whether it was asked or not: so its
    /// rate is known while no drafts are made.
    pub(crate) fn landed(&mut self, token: u32) {
        if let Some(class) = class(self.drafter.evidence()) {
            let before = self.guesses.len();
            self.drafter.guess(1, &mut self.guesses);
            let guess = self.guesses.get(before).copied();
            self.guesses.truncate(before);
            let is_right = guess == Some(token);
            self.rates[class].add(is_right);
            self.right = if is_right { self.right.saturating_add(1) } else { 0 };
        }
        self.drafter.push(token);
        self.balance = (self.balance + ALLOWANCE).min(MOST_BALANCE);
        self.wait = self.wait.saturating_sub(1);
    }

    /// Whether a draft may be made within a few tokens.
    pub(crate) fn is_near(&self) -> bool {
        self.right >= PROMISING || self.balance >= 1.0 || self.drafter.evidence() == MODEL_EVIDENCE
    }

    /// The number of guesses that gains most, at most `most`; 0 if steps are expected to be as fast. `in_flight`: steps
    /// must land first.
    pub(crate) fn worthwhile(&self, most: usize, times: PassTimes<'_>, in_flight: bool) -> usize {
        let evidence = self.drafter.evidence();
        #[cfg(test)]
        if self.eager {
            return evidence.min(most);
        }
        if self.drafter.is_eager() {
            return evidence.min(most);
        }
        if self.wait > 0 || evidence == 0 {
            return 0;
        }
        let others = times.others as f64;
        let (mut all_right, mut tokens) = (1.0, 1.0);
        let mut best = (if in_flight { MARGIN_IN_FLIGHT } else { MARGIN }, 0);
        for guesses in 1..=most {
            let Some(class) = class(evidence.saturating_add(guesses - 1)) else { break };
            all_right *= self.rates[class].value();
            tokens += all_right;
            let rows = guesses + 1;
            if times.powers_of_two && !rows.is_power_of_two() {
                continue;
            }
            let loss = (times.with)(rows) / times.without - 1.0 + LEAVING;
            let debt = if self.right < TRUSTED { 0.0 } else { MOST_DEBT };
            if loss > self.balance + debt && evidence != MODEL_EVIDENCE {
                continue;
            }
            let gain = (tokens + others) / (1.0 + others) * times.without / (times.with)(rows);
            if gain > best.0 {
                best = (gain, guesses);
            }
        }
        best.1
    }

    /// Makes a draft of at most this many guesses below `vocab`, and returns their number.
    pub(crate) fn draft(&mut self, most: usize, vocab: usize) -> usize {
        self.guesses.clear();
        self.drafter.guess(most, &mut self.guesses);
        let sound = self.guesses.iter().take(most).take_while(|guess| (**guess as usize) < vocab).count();
        self.guesses.truncate(sound);
        sound
    }

    /// The guesses of the draft.
    pub(crate) fn guesses(&self) -> &[u32] {
        &self.guesses
    }

    /// Keeps the first guesses of the draft.
    pub(crate) fn truncate(&mut self, guesses: usize) {
        self.guesses.truncate(guesses);
    }

    /// A draft has landed and gained the time of this many steps, or none was possible after all, which gains nothing. After
    /// drafts that lost time a few tokens come by steps: twice as many each time.
    pub(crate) fn ended(&mut self, steps: f64) {
        self.guesses.clear();
        self.balance = (self.balance + steps).min(MOST_BALANCE);
        if steps > 0.0 {
            self.losses = 0;
        } else {
            self.balance -= LEAVING;
            self.wait = (1 << self.losses) - 1;
            self.losses = (self.losses + 1).min(MOST_BACKOFF);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guesses a fixed token.
    #[derive(Debug)]
    struct Constant(u32, usize);

    impl Drafter for Constant {
        fn push(&mut self, _: u32) {}

        fn evidence(&self) -> usize {
            self.1
        }

        fn guess(&mut self, most: usize, guesses: &mut Vec<u32>) {
            guesses.resize(guesses.len() + most, self.0);
        }
    }

    fn times<'a>(with: &'a dyn Fn(usize) -> f64) -> PassTimes<'a> {
        PassTimes { without: 1.0, with, others: 0, powers_of_two: false }
    }

    #[test]
    fn classes_double() {
        let classes: Vec<_> =
            [0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 1 << 30, MODEL_EVIDENCE].map(class).to_vec();
        let expected = [0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7].map(Some);
        assert_eq!(classes, [&[None][..], &expected].concat());
    }

    #[test]
    fn length_follows_acceptance_and_cost() {
        let mut speculator = Speculator::new(Box::new(Constant(7, 20)));
        let cheap = |rows: usize| 1.0 + 0.1 * (rows - 1) as f64;
        assert_eq!(speculator.worthwhile(15, times(&cheap), false), 0, "nothing speaks for its guesses yet");
        (0..TRUSTED).for_each(|_| speculator.landed(7));
        let first = speculator.worthwhile(15, times(&cheap), false);
        (0..40).for_each(|_| speculator.landed(7));
        let right = speculator.worthwhile(15, times(&cheap), false);
        assert!(first > 0 && right >= first, "{first} {right}");
        assert_eq!(speculator.worthwhile(3, times(&cheap), false), 3);
        let rows = PassTimes { powers_of_two: true, ..times(&cheap) };
        assert!((speculator.worthwhile(15, rows, false) + 1).is_power_of_two());
        // A pass that costs as much as its tokens gains nothing; nor does one that others pay for.
        assert_eq!(speculator.worthwhile(15, times(&|rows| rows as f64), false), 0);
        let crowded = PassTimes { others: 100, ..times(&|rows: usize| 1.0 + 0.5 * (rows - 1) as f64) };
        assert_eq!(speculator.worthwhile(15, crowded, false), 0);
        // Wrong guesses that nobody asked for turn drafts off, and right ones on again.
        (0..60).for_each(|_| speculator.landed(8));
        assert_eq!(speculator.worthwhile(15, times(&cheap), false), 0);
        (0..100).for_each(|_| speculator.landed(7));
        assert!(speculator.worthwhile(15, times(&cheap), false) > 0);
    }

    #[test]
    fn losses_back_off_and_gains_forgive() {
        let mut speculator = Speculator::new(Box::new(Constant(7, MODEL_EVIDENCE)));
        let cheap = |rows: usize| 1.0 + 0.01 * rows as f64;
        let mut waits = Vec::new();
        for _ in 0..10 {
            speculator.ended(-1.0);
            let mut wait = 0;
            while speculator.worthwhile(4, times(&cheap), false) == 0 {
                speculator.landed(7);
                wait += 1;
            }
            waits.push(wait);
        }
        assert_eq!(waits, [0, 1, 3, 7, 15, 31, 63, 127, 127, 127]);
        speculator.ended(1.0);
        speculator.ended(-1.0);
        assert!(speculator.worthwhile(4, times(&cheap), false) > 0);
    }

    /// Guesses that are right now and then, as in novel text, cost little, however they are distributed.
    #[test]
    fn drafts_lose_little() {
        let with = |rows: usize| 1.15 + 0.07 * (rows - 1) as f64;
        for period in 2..60_u32 {
            let mut speculator = Speculator::new(Box::new(Constant(7, 4)));
            let (mut token, mut seconds) = (0_u32, 0.0);
            let text = |token: u32| if token.is_multiple_of(period) { 8 } else { 7 - u32::from(period < 4) };
            while token < 100 {
                let guesses = speculator.worthwhile(15, times(&with), true);
                if guesses == 0 {
                    speculator.landed(text(token));
                    (token, seconds) = (token + 1, seconds + 1.0);
                    continue;
                }
                let right = (0..guesses as u32).take_while(|guess| text(token + guess) == 7).count();
                (0..=right as u32).for_each(|guess| speculator.landed(text(token + guess)));
                token += right as u32 + 1;
                let gain = (right + 1) as f64 - with(guesses + 1);
                seconds += with(guesses + 1) + if gain > 0.0 { 0.0 } else { LEAVING };
                speculator.ended(gain);
            }
            assert!(
                seconds < 1.03 * f64::from(token),
                "{seconds} for {token} tokens, one of {period} is wrong"
            );
        }
    }

    #[test]
    fn drafts_end_at_ids_beyond_the_vocabulary() {
        let mut speculator = Speculator::new(Box::new(Constant(7, 20)));
        assert_eq!((speculator.draft(4, 8), speculator.guesses().len()), (4, 4));
        assert_eq!(speculator.draft(4, 7), 0);
    }
}
