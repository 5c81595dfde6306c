/// Why parameters are refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RopeError {
    /// Rotated elements that are not pairs within the head.
    #[error("{rope_dim} rotated elements from {offset} on in a head of {head_dim}: {reason}")]
    Dim {
        /// Elements to rotate.
        rope_dim: usize,
        /// The first of them.
        offset: usize,
        /// Elements of a head.
        head_dim: usize,
        /// What is needed.
        reason: &'static str,
    },
    /// A parameter that is not a positive finite number.
    #[error("rope {name} is {value}, a positive number is needed")]
    Parameter {
        /// Which.
        name: &'static str,
        /// Its value.
        value: f64,
    },
    /// A ramp of zero length.
    #[error("rope {name}: {low} and {high} leave no range between them")]
    Ramp {
        /// Which.
        name: &'static str,
        /// Lower end.
        low: f64,
        /// Upper end.
        high: f64,
    },
    /// A list of factors of the wrong length.
    #[error("{found} rope {name} for {expected} pairs")]
    Factors {
        /// Which list.
        name: &'static str,
        /// Pairs.
        expected: usize,
        /// Factors given.
        found: usize,
    },
    /// A frequency beyond any sensible parameters.
    #[error("rope pair {pair} would rotate by {value} radians per position")]
    Frequency {
        /// Which pair.
        pair: usize,
        /// Radians per position.
        value: f64,
    },
    /// Sections that do not divide the pairs among the position rows.
    #[error("rope sections {sizes:?} for {pairs} pairs: {reason}")]
    Sections {
        /// Pairs of each row.
        sizes: Vec<usize>,
        /// All pairs.
        pairs: usize,
        /// What is needed.
        reason: &'static str,
    },
}

impl RopeError {
    /// Refuses anything but a positive finite number.
    pub(super) fn positive(name: &'static str, value: f64) -> Result<(), RopeError> {
        if value > 0.0 && value.is_finite() { Ok(()) } else { Err(RopeError::Parameter { name, value }) }
    }
}
