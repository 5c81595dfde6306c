//! The tokens that are left to choose from, and what the stages of a sampler need of them.

use std::cmp::Ordering;

use crate::draw::exp;
use crate::select::more_likely;

/// Tokens with their logits. They are in any order, of which a prefix is sorted by descending logit, then by id.
///
/// Probabilities are computed from logits in f32 and summed in f64.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    list: Vec<(f32, u32)>,
    /// Whether the list is the whole vocabulary by id, in which tokens that are not allowed are -infinity.
    is_whole: bool,
    /// How many are sorted.
    sorted: usize,
    /// What logits are multiplied by: the inverse of the temperature.
    scale: f32,
    typicality: Vec<Typicality>,
}

/// A candidate by how far its surprise is from the entropy.
#[derive(Debug, Clone, Copy)]
struct Typicality {
    distance: f32,
    p: f32,
    candidate: (f32, u32),
}

/// The largest inverse temperature, so that no product is infinity times 0.
const MAX_SCALE: f32 = 1e30;
/// The exponent below which a probability counts as 0.
const NEGLIGIBLE: f32 = -80.0;

impl Candidates {
    /// Takes the logits of a vocabulary. Those of tokens that are not allowed are NaN.
    pub(crate) fn fill(&mut self, logits: &[f32]) {
        self.list.clear();
        let allowed = |logit: f32| if logit.is_nan() { f32::NEG_INFINITY } else { logit };
        self.list.extend(logits.iter().zip(0u32..).map(|(&logit, id)| (allowed(logit), id)));
        (self.is_whole, self.sorted, self.scale) = (true, 0, 1.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Changes the logits of some tokens. `tokens`: each of them once; `find`: the same by id.
    pub(crate) fn change<T>(
        &mut self,
        tokens: impl IntoIterator<Item = (u32, T)>,
        find: impl Fn(u32) -> Option<T>,
        change: impl Fn(f32, T) -> f32,
    ) {
        let change = |logit: f32, by: T| match logit {
            f32::NEG_INFINITY => logit,
            _ => change(logit, by).clamp(f32::MIN, f32::MAX),
        };
        if self.scale != 1.0 {
            let scale = std::mem::replace(&mut self.scale, 1.0);
            self.list.iter_mut().for_each(|(logit, _)| *logit = scaled(*logit, scale));
        }
        if self.is_whole {
            for (id, by) in tokens {
                if let Some((logit, _)) = self.list.get_mut(id as usize) {
                    *logit = change(*logit, by);
                }
            }
        } else {
            for (logit, id) in &mut self.list {
                if let Some(by) = find(*id) {
                    *logit = change(*logit, by);
                }
            }
        }
        self.sorted = 0;
    }

    /// Leaves out tokens that are not allowed. Stages that drop tokens or look at probabilities begin with it.
    pub(crate) fn leave_out(&mut self) {
        if std::mem::take(&mut self.is_whole) {
            self.list.retain(|(logit, _)| *logit != f32::NEG_INFINITY);
        }
    }

    /// Candidate `index` in descending order.
    pub(crate) fn at(&mut self, index: usize) -> (f32, u32) {
        if index >= self.sorted {
            self.sorted += sort_more(&mut self.list[self.sorted..], self.sorted, more_likely);
        }
        self.list[index]
    }

    /// The largest logit.
    pub(crate) fn largest(&self) -> f32 {
        match self.sorted {
            0 => {
                let mut lanes = [f32::NEG_INFINITY; 8];
                let (eights, rest) = self.list.as_chunks::<8>();
                for eight in eights {
                    lanes.iter_mut().zip(eight).for_each(|(lane, (logit, _))| *lane = lane.max(*logit));
                }
                rest.iter().map(|(logit, _)| *logit).chain(lanes).fold(f32::NEG_INFINITY, f32::max)
            }
            _ => self.list[0].0,
        }
    }

    /// The natural logarithms of the candidates' probabilities relative to the largest.
    pub(crate) fn exponents(&self, largest: f32) -> impl Fn(f32) -> f32 + use<> {
        let scale = self.scale;
        move |logit| (logit - largest) * scale
    }

    fn exponent(&self, logit: f32, largest: f32) -> f32 {
        self.exponents(largest)(logit)
    }

    /// A candidate's probability relative to the largest.
    pub(crate) fn relative(&self, logit: f32, largest: f32) -> f32 {
        let exponent = self.exponent(logit, largest);
        if exponent < NEGLIGIBLE { 0.0 } else { exp(exponent) }
    }

    /// The sum of all relative probabilities.
    pub(crate) fn total(&self, largest: f32) -> f64 {
        self.sum(|logit| self.relative(logit, largest))
    }

    /// The entropy in nats.
    pub(crate) fn entropy(&self, largest: f32, total: f64) -> f64 {
        let weighted = self.sum(|logit| {
            let p = self.relative(logit, largest);
            if p > 0.0 { p * self.exponent(logit, largest) } else { 0.0 }
        });
        total.ln() - weighted / total
    }

    /// The sum over the candidates in their current order, in eight lanes so that it is vectorised.
    fn sum(&self, of: impl Fn(f32) -> f32) -> f64 {
        let (mut lanes, mut sum) = ([0f32; 8], 0f64);
        let (eights, rest) = self.list.as_chunks::<8>();
        for (i, eight) in eights.iter().enumerate() {
            lanes.iter_mut().zip(eight).for_each(|(lane, (logit, _))| *lane += of(*logit));
            // Short sums in f32 keep their rounding errors small.
            if i % 8 == 7 {
                sum += std::mem::take(&mut lanes).into_iter().map(f64::from).sum::<f64>();
            }
        }
        sum + lanes.into_iter().chain(rest.iter().map(|(logit, _)| of(*logit))).map(f64::from).sum::<f64>()
    }

    /// Divides the logits by a temperature. 0 keeps the most likely token.
    pub(crate) fn heat(&mut self, temperature: f32) {
        if temperature > 0.0 {
            self.scale = (self.scale / temperature).min(MAX_SCALE);
        } else if let Some(&best) = self.list.iter().min_by(|a, b| more_likely(a, b)) {
            self.list.clear();
            self.list.push(best);
            self.sorted = 1;
        }
    }

    /// Keeps the first `count` in descending order.
    pub(crate) fn truncate(&mut self, count: usize) {
        if count > self.sorted && count < self.list.len() {
            self.list[self.sorted..].select_nth_unstable_by(count - self.sorted - 1, more_likely);
        }
        self.list.truncate(count);
        self.sorted = self.sorted.min(count);
    }

    /// Keeps those from `first` on in descending order.
    pub(crate) fn skip(&mut self, first: usize) {
        if first > 0 {
            self.at(first);
            self.list.drain(..first);
            self.sorted -= first;
        }
    }

    /// Keeps the candidates whose logits are wanted: all from some logit on.
    pub(crate) fn keep_large(&mut self, is_wanted: impl Fn(f32) -> bool) {
        self.sorted = self.list[..self.sorted].iter().take_while(|(logit, _)| is_wanted(*logit)).count();
        self.list.retain(|(logit, _)| is_wanted(*logit));
    }

    /// The standard deviation of the logits. Those that a bias or a penalty has made the smallest number
    /// are not counted.
    pub(crate) fn deviation(&self) -> f64 {
        let counted = || self.list.iter().map(|(logit, _)| *logit).filter(|logit| *logit > f32::MIN);
        let count = counted().count().max(1) as f64;
        let mean = counted().map(f64::from).sum::<f64>() / count;
        let variance = counted().map(|logit| (f64::from(logit) - mean).powi(2)).sum::<f64>() / count;
        variance.sqrt()
    }

    /// Keeps the most typical candidates until their probabilities exceed a sum.
    pub(crate) fn keep_typical(&mut self, typical_p: f32) {
        let largest = self.largest();
        let total = self.total(largest);
        let entropy = self.entropy(largest, total);
        let mut all = std::mem::take(&mut self.typicality);
        all.clear();
        all.extend(self.list.iter().map(|&candidate| {
            let p = self.relative(candidate.0, largest);
            let surprise = total.ln() - f64::from(self.exponent(candidate.0, largest));
            let distance = if p > 0.0 { (surprise - entropy).abs() as f32 } else { f32::INFINITY };
            Typicality { distance, p, candidate }
        }));
        let before = |a: &Typicality, b: &Typicality| {
            a.distance.total_cmp(&b.distance).then_with(|| more_likely(&a.candidate, &b.candidate))
        };
        let (mut sorted, mut sum, mut kept) = (0, 0.0, 0);
        while kept < all.len() && sum <= f64::from(typical_p) * total {
            if kept >= sorted {
                sorted += sort_more(&mut all[sorted..], sorted, before);
            }
            sum += f64::from(all[kept].p);
            kept += 1;
        }
        self.list.clear();
        self.list.extend(all[..kept].iter().map(|token| token.candidate));
        self.sorted = 0;
        self.typicality = all;
    }
}

fn scaled(logit: f32, scale: f32) -> f32 {
    if logit == f32::NEG_INFINITY { logit } else { (logit * scale).clamp(f32::MIN, f32::MAX) }
}

/// Sorts the first of the rest of a list of which `sorted` are sorted already: a few at first, then more. Returns their
/// number.
fn sort_more<T>(rest: &mut [T], sorted: usize, compare: impl Fn(&T, &T) -> Ordering) -> usize {
    let more = (3 * sorted).max(256).min(rest.len());
    if more < rest.len() && more > 0 {
        rest.select_nth_unstable_by(more - 1, &compare);
    }
    rest[..more].sort_unstable_by(&compare);
    more
}
