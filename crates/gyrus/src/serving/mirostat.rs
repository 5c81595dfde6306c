//! Mirostat's state along a sequence, so that a job that is preempted, stopped or truncated goes on as if it had not been.

use gyrus_kernels::{Mirostat, Sampler};

/// `mu` after each token that was sampled with mirostat.
#[derive(Debug, Default)]
pub(super) struct MirostatTrail {
    /// With which `tau` and `eta`.
    of: Option<(f32, f32)>,
    /// Tokens of the sequence before the first that was sampled.
    first: usize,
    mus: Vec<f32>,
}

impl MirostatTrail {
    /// A job begins after `length` tokens, of which `common` are the sequence's own. Gives `mu` to its sampler if the
    /// sequence was sampled up to there with the same parameters.
    pub(super) fn begin(&mut self, sampler: Option<&mut Sampler>, common: usize, length: usize) {
        let mirostat = sampler.and_then(|sampler| sampler.mirostat.as_mut());
        let of = mirostat.as_ref().map(|mirostat| (mirostat.tau, mirostat.eta));
        let known = (self.of == of && common == length).then(|| length.checked_sub(self.first)).flatten();
        match (mirostat, known) {
            (Some(mirostat @ Mirostat { mu: None, .. }), Some(count @ 1..)) if count <= self.mus.len() => {
                self.mus.truncate(count);
                mirostat.mu = self.mus.last().copied();
            }
            _ => {
                (self.of, self.first) = (of, length);
                self.mus.clear();
            }
        }
    }

    /// A token was appended that was not sampled: the state stays.
    pub(super) fn forced(&mut self, sampler: &Sampler) {
        self.mus.extend(sampler.mirostat.map(|mirostat| mirostat.mu()));
    }

    /// A token was sampled.
    pub(super) fn landed(&mut self, sampler: &mut Sampler, mu: f32) {
        if let Some(mirostat) = &mut sampler.mirostat {
            mirostat.mu = Some(mu);
            self.mus.push(mu);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(tau: f32) -> Sampler {
        Sampler { mirostat: Some(Mirostat { tau, ..Mirostat::default() }), ..Sampler::default() }
    }

    #[test]
    fn jobs_continue_where_the_sequence_was_sampled() {
        let mut trail = MirostatTrail::default();
        let mut first = sampler(5.0);
        trail.begin(Some(&mut first), 0, 4);
        assert_eq!(first.mirostat.unwrap().mu, None);
        for mu in [9.0, 8.0, 7.0] {
            trail.landed(&mut first, mu);
        }
        assert_eq!(first.mirostat.unwrap().mu, Some(7.0), "preempted and started again");
        trail.forced(&first);
        assert_eq!(trail.mus, [9.0, 8.0, 7.0, 7.0]);
        trail.mus.pop();
        let mut mu_after = |length: usize, common: usize, tau: f32| {
            let mut next = sampler(tau);
            trail.begin(Some(&mut next), common, length);
            let mu = next.mirostat.unwrap().mu;
            // Back to where it was.
            trail.first = 4;
            (trail.of, trail.mus) = (Some((5.0, 0.1)), vec![9.0, 8.0, 7.0]);
            mu
        };
        assert_eq!(mu_after(7, 7, 5.0), Some(7.0), "continued");
        assert_eq!(mu_after(6, 6, 5.0), Some(8.0), "truncated");
        assert_eq!(mu_after(4, 4, 5.0), None, "generated again from the prompt on");
        assert_eq!(mu_after(2, 2, 5.0), None, "a part of the prompt");
        assert_eq!(mu_after(7, 6, 5.0), None, "another token");
        assert_eq!(mu_after(9, 7, 5.0), None, "a new turn");
        assert_eq!(mu_after(7, 7, 4.0), None, "another tau");
    }
}
