use std::fmt;
use std::str::FromStr;

use super::validate::SamplerError;

/// A stage of a sampler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Repetition, presence and frequency penalties.
    Penalties,
    /// The penalty on tokens that would continue a repetition.
    Dry,
    /// The cut at a number of standard deviations below the largest logit.
    TopNSigma,
    /// The cut at a number of tokens.
    TopK,
    /// The cut by typicality.
    TypicalP,
    /// The cut at a sum of probabilities.
    TopP,
    /// The cut at a fraction of the largest probability.
    MinP,
    /// The removal of top choices.
    Xtc,
    /// The temperature, constant or dynamic.
    Temperature,
}

/// Stages with the names by which users of llama.cpp know them; the first of each is written.
const NAMES: [(Stage, &[&str]); 9] = [
    (Stage::Penalties, &["penalties"]),
    (Stage::Dry, &["dry"]),
    (Stage::TopNSigma, &["top_n_sigma", "top-n-sigma"]),
    (Stage::Temperature, &["temperature", "temp"]),
    (Stage::TopK, &["top_k", "top-k"]),
    (Stage::TypicalP, &["typ_p", "typical_p", "typical-p", "typ-p", "typical"]),
    (Stage::TopP, &["top_p", "top-p", "nucleus"]),
    (Stage::MinP, &["min_p", "min-p"]),
    (Stage::Xtc, &["xtc"]),
];

/// The stages that a sampler applies, in this order. A stage that is left out is not applied, whatever its parameters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Order {
    stages: [Stage; NAMES.len()],
    count: usize,
}

impl Order {
    /// Of these stages. Each may be there once.
    pub fn new(stages: &[Stage]) -> Result<Order, SamplerError> {
        let mut order = Order { count: 0, ..Order::default() };
        for &stage in stages {
            if order.stages().any(|other| other == stage) {
                return Err(SamplerError::Twice { name: stage.to_string() });
            }
            order.stages[order.count] = stage;
            order.count += 1;
        }
        Ok(order)
    }

    /// The stages.
    pub fn stages(&self) -> impl Iterator<Item = Stage> + use<> {
        let Order { stages, count } = *self;
        stages.into_iter().take(count)
    }
}

impl Default for Order {
    fn default() -> Order {
        Order { stages: NAMES.map(|(stage, _)| stage), count: NAMES.len() }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = NAMES.iter().find(|(stage, _)| stage == self).map_or(&[""][..], |(_, names)| names);
        f.write_str(names[0])
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, stage) in self.stages().enumerate() {
            write!(f, "{}{stage}", if i > 0 { ";" } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Names of stages, separated by semicolons or commas.
impl FromStr for Order {
    type Err = SamplerError;

    fn from_str(text: &str) -> Result<Order, SamplerError> {
        let names = text.split([';', ',']).map(str::trim).filter(|name| !name.is_empty());
        let stages = names.map(|name| {
            let known = NAMES.iter().find(|(_, names)| names.contains(&name));
            known.map(|(stage, _)| *stage).ok_or_else(|| SamplerError::Unknown {
                name: name.to_owned(),
                known: Order::default().to_string().replace(';', ", "),
            })
        });
        Order::new(&stages.collect::<Result<Vec<_>, _>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_as_they_are_written() {
        let order = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";
        assert_eq!(order.parse::<Order>().unwrap().to_string(), order);
        assert_eq!(Order::default().to_string().parse::<Order>().unwrap(), Order::default());
        assert_eq!(" top-k , temp;".parse::<Order>().unwrap().to_string(), "top_k;temperature");
        assert_eq!("".parse::<Order>().unwrap().stages().count(), 0);
    }

    #[test]
    fn wrong_orders_are_refused_by_name() {
        let error = |text: &str| text.parse::<Order>().unwrap_err().to_string();
        assert_eq!(error("top_k;temp;top-k"), "the sampler top_k is named twice");
        let known = "penalties, dry, top_n_sigma, temperature, top_k, typ_p, top_p, min_p, xtc";
        assert_eq!(error("top_k;top_q"), format!("there is no sampler 'top_q'; there are {known}"));
    }
}
