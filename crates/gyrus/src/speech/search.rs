//! Greedy decoding, sampling and beam search over rows of logits.

use super::rules::Rules;

/// How hypotheses are extended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Strategy {
    /// The most probable token.
    Greedy,
    /// This many beams; the search ends when that many times `patience` are complete.
    Beam { width: usize, patience: f32 },
    /// This many independent samples at a temperature.
    Sample { count: usize, temperature: f32, seed: u64 },
}

/// A text that may be what was said.
#[derive(Debug, Clone, Default)]
pub(super) struct Hypothesis {
    /// Tokens after the prompt, without the end.
    pub(super) tokens: Vec<u32>,
    /// The sum of the log-probabilities of all tokens, the end included.
    pub(super) log_probability: f64,
    /// Whether it was as long as it may be before it ended.
    pub(super) is_cut: bool,
    /// Whether it ended with a timestamp at the end of the recording instead of the end token.
    pub(super) is_at_end: bool,
}

impl Hypothesis {
    /// The mean log-probability of its tokens and the end.
    pub(super) fn mean(&self) -> f64 {
        self.log_probability / (self.tokens.len() + 1) as f64
    }

    fn score(&self) -> f64 {
        self.log_probability / self.tokens.len().max(1) as f64
    }
}

/// An extension of a hypothesis: the index of the one that it extends, and the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extension {
    pub(super) parent: usize,
    pub(super) token: u32,
}

/// The search for the text of one window.
pub(super) struct Search {
    strategy: Strategy,
    end: u32,
    /// The first timestamp after which nothing is said.
    last_time: Option<u32>,
    most_tokens: usize,
    live: Vec<Hypothesis>,
    complete: Vec<Hypothesis>,
}

impl Search {
    /// `end` is the token that ends a text.
    pub(super) fn new(strategy: Strategy, end: u32, most_tokens: usize) -> Search {
        let live = vec![Hypothesis::default()];
        Search { strategy, end, last_time: None, most_tokens, live, complete: Vec::new() }
    }

    /// Ends a text with this timestamp or a later one: the recording ends there.
    pub(super) fn until(self, last_time: Option<u32>) -> Search {
        Search { last_time, ..self }
    }

    fn is_at_end(&self, token: u32) -> bool {
        self.last_time.is_some_and(|last| token >= last)
    }

    /// Whether no token was chosen yet.
    pub(super) fn is_at_start(&self) -> bool {
        matches!(&self.live[..], [only] if only.tokens.is_empty()) && self.complete.is_empty()
    }

    /// The hypotheses whose logits are wanted next.
    pub(super) fn live(&self) -> &[Hypothesis] {
        &self.live
    }

    pub(super) fn is_done(&self) -> bool {
        self.live.is_empty()
    }

    /// Extends the live hypotheses by their logits, one row of `vocab` for each, and returns how the new live ones came from
    /// the old ones.
    pub(super) fn advance(&mut self, rules: &Rules, logits: &mut [f32], vocab: usize) -> Vec<Extension> {
        for (hypothesis, logits) in self.live.iter().zip(logits.chunks_exact_mut(vocab)) {
            rules.apply(&hypothesis.tokens, logits);
        }
        let rows: Vec<Row<'_>> = logits.chunks_exact(vocab).map(Row::new).collect();
        let extensions = match self.strategy {
            Strategy::Greedy => self.each(&rows, |row, _| row.best()),
            Strategy::Sample { count, temperature, seed } => {
                self.fan_out(count);
                let step = self.live.first().map_or(0, |live| live.tokens.len()) as u64;
                let draw = |row: &Row<'_>, n: usize| row.sample(temperature, uniform(seed, step, n as u64));
                let shared = rows.len() == 1 && count > 1;
                let extensions = self.each_of(&rows, shared, draw);
                return self.finish_step(extensions);
            }
            Strategy::Beam { width, patience } => self.beam(&rows, width, patience),
        };
        self.finish_step(extensions)
    }

    /// At the first step of several samples there is one row of logits for all of them.
    fn fan_out(&mut self, count: usize) {
        if self.live.len() == 1 && self.live[0].tokens.is_empty() {
            self.live = vec![Hypothesis::default(); count];
        }
    }

    fn each(&mut self, rows: &[Row<'_>], choose: impl Fn(&Row<'_>, usize) -> u32) -> Vec<Extension> {
        self.each_of(rows, false, choose)
    }

    /// Extends each hypothesis by one token. Those that end are complete.
    fn each_of(
        &mut self,
        rows: &[Row<'_>],
        shared: bool,
        choose: impl Fn(&Row<'_>, usize) -> u32,
    ) -> Vec<Extension> {
        let mut extensions = Vec::new();
        let old = std::mem::take(&mut self.live);
        for (n, mut hypothesis) in old.into_iter().enumerate() {
            let parent = if shared { 0 } else { n };
            let Some(row) = rows.get(parent) else { continue };
            let token = choose(row, n);
            hypothesis.log_probability += row.log_probability(token);
            if token == self.end {
                self.complete.push(hypothesis);
                continue;
            }
            hypothesis.tokens.push(token);
            if self.is_at_end(token) {
                self.complete.push(Hypothesis { is_at_end: true, ..hypothesis });
            } else {
                self.live.push(hypothesis);
                extensions.push(Extension { parent, token });
            }
        }
        extensions
    }

    /// Each beam proposes one more than the width; the best that do not end live on.
    fn beam(&mut self, rows: &[Row<'_>], width: usize, patience: f32) -> Vec<Extension> {
        let mut candidates: Vec<(f64, Extension)> = Vec::new();
        for (parent, (hypothesis, row)) in self.live.iter().zip(rows).enumerate() {
            for (token, log_probability) in row.top(width + 1) {
                let extension = Extension { parent, token };
                candidates.push((hypothesis.log_probability + log_probability, extension));
            }
        }
        candidates.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let most = ((width as f32 * patience).round() as usize).max(1);
        let (mut live, mut extensions) = (Vec::new(), Vec::new());
        for (log_probability, extension) in candidates {
            let tokens = self.live[extension.parent].tokens.clone();
            let is_at_end = self.is_at_end(extension.token);
            let mut hypothesis = Hypothesis { tokens, log_probability, is_cut: false, is_at_end };
            if extension.token != self.end {
                hypothesis.tokens.push(extension.token);
            }
            if extension.token == self.end || is_at_end {
                if self.complete.len() < most {
                    self.complete.push(hypothesis);
                }
            } else {
                live.push(hypothesis);
                extensions.push(extension);
                if live.len() == width {
                    break;
                }
            }
        }
        self.live = live;
        if self.complete.len() >= most {
            self.live.clear();
            extensions.clear();
        }
        extensions
    }

    /// Ends the search if the hypotheses are as long as they may be.
    fn finish_step(&mut self, mut extensions: Vec<Extension>) -> Vec<Extension> {
        if self.live.first().is_some_and(|live| live.tokens.len() >= self.most_tokens) {
            let cut = self.live.drain(..).map(|live| Hypothesis { is_cut: true, ..live });
            self.complete.extend(cut);
            extensions.clear();
        }
        extensions
    }

    /// The best complete hypothesis.
    pub(super) fn best(mut self) -> Hypothesis {
        self.complete.append(&mut self.live);
        let best = self.complete.into_iter().max_by(|a, b| a.score().total_cmp(&b.score()));
        best.unwrap_or_default()
    }
}

/// A row of logits with what its log-probabilities need.
struct Row<'a> {
    logits: &'a [f32],
    largest: f32,
    log_sum: f64,
}

impl<'a> Row<'a> {
    fn new(logits: &'a [f32]) -> Row<'a> {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum = exp_sum(logits, largest);
        Row { logits, largest, log_sum: sum.ln() }
    }

    fn log_probability(&self, token: u32) -> f64 {
        let logit = self.logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
        f64::from(logit - self.largest) - self.log_sum
    }

    /// The most probable token, of equals the lowest.
    fn best(&self) -> u32 {
        self.logits.iter().position(|logit| *logit == self.largest).unwrap_or(0) as u32
    }

    fn top(&self, count: usize) -> Vec<(u32, f64)> {
        let mut top: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
        for (token, &logit) in (0..).zip(self.logits) {
            if logit > f32::NEG_INFINITY && (top.len() < count || logit > top[top.len() - 1].1) {
                let at = top.partition_point(|(_, other)| *other >= logit);
                top.insert(at, (token, logit));
                top.truncate(count);
            }
        }
        top.into_iter().map(|(token, _)| (token, self.log_probability(token))).collect()
    }

    /// A token drawn at a temperature by a number from 0 to 1.
    fn sample(&self, temperature: f32, number: f64) -> u32 {
        let weight = |logit: f32| f64::from(((logit - self.largest) / temperature).exp());
        let total: f64 = self.logits.iter().map(|logit| weight(*logit)).sum();
        let mut left = number * total;
        let mut last = self.best();
        for (token, &logit) in (0..).zip(self.logits) {
            if logit > f32::NEG_INFINITY {
                left -= weight(logit);
                last = token;
                if left < 0.0 {
                    break;
                }
            }
        }
        last
    }
}

/// `Σ exp(x − largest)`. Tokens far below the largest are left out: all of them together are below 1e-6.
fn exp_sum(logits: &[f32], largest: f32) -> f64 {
    const NEGLIGIBLE: f32 = 25.0;
    let least = largest - NEGLIGIBLE;
    logits.iter().filter(|logit| **logit > least).map(|logit| f64::from((logit - largest).exp())).sum()
}

/// A number from 0 to 1 that depends on its arguments alone.
fn uniform(seed: u64, step: u64, sample: u64) -> f64 {
    let mut z = seed ^ (step << 8 | sample).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..2 {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
    }
    (z >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tests::small;
    use super::*;

    const VOCAB: usize = 261 + 2 + 3 + 6 + 1501;
    const END: u32 = 261;

    fn rules() -> Rules {
        Rules::new(&small(3), false, false, &[])
    }

    /// Logits whose probabilities are these; others are impossible.
    fn row(probabilities: &[(u32, f32)]) -> Vec<f32> {
        let mut logits = vec![-1e4; VOCAB];
        for (token, p) in probabilities {
            logits[*token as usize] = p.ln();
        }
        logits
    }

    #[test]
    fn greedy_takes_the_best_token_until_the_end() {
        let mut search = Search::new(Strategy::Greedy, END, 100);
        let token = |token| vec![Extension { parent: 0, token }];
        assert_eq!(search.advance(&rules(), &mut row(&[(5, 0.6), (6, 0.4)]), VOCAB), token(5));
        assert_eq!(search.advance(&rules(), &mut row(&[(9, 0.5), (8, 0.5)]), VOCAB), token(8));
        assert!(search.advance(&rules(), &mut row(&[(END, 0.9), (8, 0.1)]), VOCAB).is_empty());
        assert!(search.is_done());
        let best = search.best();
        assert_eq!(best.tokens, [5, 8]);
        assert!((best.log_probability - (0.6f64 * 0.5 * 0.9).ln()).abs() < 1e-5);
        assert!((best.mean() - best.log_probability / 3.0).abs() < 1e-12);
    }

    #[test]
    fn a_search_ends_at_the_most_tokens() {
        let mut search = Search::new(Strategy::Greedy, END, 2);
        search.advance(&rules(), &mut row(&[(5, 1.0)]), VOCAB);
        assert!(search.advance(&rules(), &mut row(&[(5, 1.0)]), VOCAB).is_empty());
        assert_eq!(search.best().tokens, [5, 5]);
    }

    #[test]
    fn a_search_ends_with_a_timestamp_at_the_end_of_the_recording() {
        let first = small(3).first_timestamp;
        let rules = Rules::new(&small(3), true, false, &[]);
        for strategy in [Strategy::Greedy, Strategy::Beam { width: 1, patience: 1.0 }] {
            let mut search = Search::new(strategy, END, 100).until(Some(first + 300));
            for token in [first, 5, first + 299, first + 299, 6] {
                assert_eq!(search.advance(&rules, &mut row(&[(token, 1.0)]), VOCAB).len(), 1);
            }
            assert!(search.advance(&rules, &mut row(&[(first + 301, 1.0)]), VOCAB).is_empty());
            assert!(search.is_done());
            let best = search.best();
            assert!(best.is_at_end && !best.is_cut);
            assert_eq!(best.tokens[4..], [6, first + 301]);
        }
    }

    /// The best first token leads to a worse text than the second best.
    #[test]
    fn beams_find_what_greedy_misses() {
        let mut search = Search::new(Strategy::Beam { width: 2, patience: 1.0 }, END, 100);
        let first = search.advance(&rules(), &mut row(&[(5, 0.6), (6, 0.4)]), VOCAB);
        assert_eq!(first, [Extension { parent: 0, token: 5 }, Extension { parent: 0, token: 6 }]);
        let mut rows = row(&[(7, 0.3), (8, 0.3), (9, 0.4)]);
        rows.extend(row(&[(7, 0.9), (8, 0.1)]));
        let second = search.advance(&rules(), &mut rows, VOCAB);
        assert_eq!(second, [Extension { parent: 1, token: 7 }, Extension { parent: 0, token: 9 }]);
        let mut rows = row(&[(END, 1.0)]);
        rows.extend(row(&[(END, 1.0)]));
        assert!(search.advance(&rules(), &mut rows, VOCAB).is_empty());
        assert_eq!(search.best().tokens, [6, 7]);
    }

    #[test]
    fn samples_follow_the_probabilities_and_the_seed() {
        let mut counts = [0; 2];
        for seed in 0..2000 {
            let strategy = Strategy::Sample { count: 1, temperature: 1.0, seed };
            let mut search = Search::new(strategy, END, 100);
            let next = search.advance(&rules(), &mut row(&[(5, 0.7), (6, 0.3)]), VOCAB);
            counts[(next[0].token - 5) as usize] += 1;
        }
        assert!((1300..1500).contains(&counts[0]), "{counts:?}");
        let draw = || {
            let strategy = Strategy::Sample { count: 5, temperature: 0.5, seed: 3 };
            Search::new(strategy, END, 100).advance(&rules(), &mut row(&[(5, 0.5), (6, 0.5)]), VOCAB)
        };
        assert_eq!(draw(), draw());
        assert_eq!(draw().len(), 5);
        assert!(draw().iter().all(|extension| extension.parent == 0));
    }
}
