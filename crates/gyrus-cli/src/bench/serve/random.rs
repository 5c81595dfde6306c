//! Seeded random numbers, and what a load is drawn from: lengths and arrivals.

use std::fmt;
use std::str::FromStr;

/// SplitMix64: the same seed gives the same load on every machine.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    /// A generator of its own for each purpose, so that more draws for one do not change another.
    pub(super) fn new(seed: u64, purpose: u64) -> Random {
        let mut random = Random(seed ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93));
        random.next();
        random
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0, exclusive, to 1, so that its logarithm is finite.
    pub(super) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// An exponential number of mean 1: the time between arrivals of a Poisson process.
    pub(super) fn exponential(&mut self) -> f64 {
        -self.unit().ln()
    }

    /// A normal number of mean 0 and deviation 1 (Box and Muller).
    fn normal(&mut self) -> f64 {
        let radius = (2.0 * self.exponential()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Below `n`, which is at least 1.
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// When requests arrive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Arrivals {
    /// All at the start.
    AllAtOnce,
    /// Each when the one before it has ended.
    OneAfterAnother,
    /// So many a second on average, independent of each other and of what is served.
    Poisson(f64),
}

impl FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Arrivals, String> {
        match text {
            "all" => Ok(Arrivals::AllAtOnce),
            "one" => Ok(Arrivals::OneAfterAnother),
            rate => {
                match rate.parse() {
                    Ok(rate) if rate > 0.0 && rate <= 1e6 => Ok(Arrivals::Poisson(rate)),
                    _ => Err("requests per second (above 0, at most 1000000), `all` or `one` are needed"
                        .to_owned()),
                }
            }
        }
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Arrivals::AllAtOnce => f.write_str("all"),
            Arrivals::OneAfterAnother => f.write_str("one"),
            Arrivals::Poisson(rate) => write!(f, "{rate}"),
        }
    }
}

/// A distribution of lengths in tokens, at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lengths {
    kind: Kind,
    mean: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// All the same.
    Fixed,
    /// From 1 to twice the mean.
    Uniform,
    /// Many short ones, few long ones.
    Exponential,
    /// As lengths of real prompts often are: a long tail, and few that are very short.
    LogNormal,
}

const KINDS: [(&str, Kind); 4] = [
    ("fixed", Kind::Fixed),
    ("uniform", Kind::Uniform),
    ("exponential", Kind::Exponential),
    ("log-normal", Kind::LogNormal),
];

/// The deviation of a log-normal length's logarithm.
const SIGMA: f64 = 1.0;
/// A tail ends at this many times the mean.
const TAIL: usize = 8;

impl Lengths {
    pub(crate) const fn fixed(tokens: usize) -> Lengths {
        Lengths { kind: Kind::Fixed, mean: tokens }
    }

    /// The mean before the tail is cut.
    pub(super) fn mean(&self) -> usize {
        self.mean
    }

    pub(super) fn draw(&self, random: &mut Random) -> usize {
        let mean = self.mean as f64;
        let length = match self.kind {
            Kind::Fixed => return self.mean,
            Kind::Uniform => return 1 + random.below(2 * self.mean - 1),
            Kind::Exponential => mean * random.exponential(),
            Kind::LogNormal => mean * (SIGMA * random.normal() - SIGMA * SIGMA / 2.0).exp(),
        };
        (length.round() as usize).clamp(1, TAIL * self.mean)
    }
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Lengths, String> {
        let wrong = || {
            "tokens are needed (1 to 1048576), or KIND:MEAN with fixed, uniform, exponential or log-normal"
                .to_owned()
        };
        let (kind, mean) = match text.split_once(':') {
            None => (Kind::Fixed, text),
            Some((name, mean)) => {
                let (_, kind) = KINDS.iter().find(|(known, _)| *known == name).ok_or_else(wrong)?;
                (*kind, mean)
            }
        };
        match mean.parse() {
            Ok(mean @ 1..=1_048_576) => Ok(Lengths { kind, mean }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match KINDS.iter().find(|(_, kind)| *kind == self.kind) {
            Some((name, kind)) if *kind != Kind::Fixed => write!(f, "{name}:{}", self.mean),
            _ => write!(f, "{}", self.mean),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_depend_on_seed_and_purpose_only() {
        let draws = |seed, purpose| {
            let mut random = Random::new(seed, purpose);
            [(); 4].map(|()| random.next())
        };
        assert_eq!(draws(1, 2), draws(1, 2));
        assert_ne!(draws(1, 2), draws(2, 1));
        assert_ne!(draws(1, 2), draws(1, 3));
        assert_ne!(draws(0, 0)[0], 0);
    }

    #[test]
    fn lengths_have_their_mean_and_stay_within_their_bounds() {
        // Lengths below one count as one, which raises a mean of one.
        for (text, most, tolerance) in [
            ("300", 300, 0.0),
            ("fixed:300", 300, 0.0),
            ("uniform:300", 599, 0.02),
            ("exponential:300", 2400, 0.03),
            ("log-normal:300", 2400, 0.05),
            ("uniform:1", 1, 0.0),
            ("exponential:1", 8, 0.4),
        ] {
            let lengths: Lengths = text.parse().unwrap();
            let mut random = Random::new(3, 1);
            let drawn: Vec<usize> = (0..20_000).map(|_| lengths.draw(&mut random)).collect();
            assert!(drawn.iter().all(|n| (1..=most).contains(n)), "{text}");
            let mean = drawn.iter().sum::<usize>() as f64 / drawn.len() as f64;
            let off = (mean / lengths.mean() as f64 - 1.0).abs();
            assert!(off <= tolerance, "{text}: a mean of {mean}");
            if tolerance > 0.0 {
                assert!(drawn.iter().any(|n| *n != drawn[0]), "{text}");
            }
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for text in ["7", "uniform:7", "exponential:7", "log-normal:7"] {
            assert_eq!(text.parse::<Lengths>().unwrap().to_string(), text);
        }
        for text in ["", "0", "-1", "x", "normal:5", "uniform", "uniform:0", "7:7", "1048577", "1.5"] {
            assert!(text.parse::<Lengths>().is_err(), "{text}");
        }
        for text in ["all", "one", "2.5"] {
            assert_eq!(text.parse::<Arrivals>().unwrap().to_string(), text);
        }
        for text in ["", "0", "-1", "nan", "inf", "1e7", "none"] {
            assert!(text.parse::<Arrivals>().is_err(), "{text}");
        }
    }
}
