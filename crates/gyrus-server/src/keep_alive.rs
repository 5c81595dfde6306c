//! How long a model stays loaded after its last request.

use std::time::Duration;

use serde_json::Value;

/// How long a model stays loaded after its last request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    /// Until something else needs its memory.
    Forever,
    /// For this time.
    For(Duration),
}

impl KeepAlive {
    /// Ollama's field: seconds, or a number with a unit such as `5m`; negative is for ever.
    pub(crate) fn from_json(value: &Value) -> Result<KeepAlive, String> {
        match value {
            Value::Number(seconds) => seconds.as_f64().map_or(Err(Self::expected()), Self::seconds),
            Value::String(text) => text.parse(),
            _ => Err(Self::expected()),
        }
    }

    fn seconds(seconds: f64) -> Result<KeepAlive, String> {
        match seconds {
            s if s < 0.0 => Ok(KeepAlive::Forever),
            s if s <= 1e9 => Ok(KeepAlive::For(Duration::from_secs_f64(s))),
            _ => Err(Self::expected()),
        }
    }

    fn expected() -> String {
        "a time such as 30s, 5m or 1h is needed; a negative one is for ever".to_owned()
    }
}

impl std::str::FromStr for KeepAlive {
    type Err = String;

    fn from_str(text: &str) -> Result<KeepAlive, String> {
        let text = text.trim();
        if text == "forever" {
            return Ok(KeepAlive::Forever);
        }
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &text[digits.len()..] {
            "ms" => 1e-3,
            "" | "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(Self::expected()),
        };
        let number: f64 = digits.parse().map_err(|_| Self::expected())?;
        Self::seconds(number * unit)
    }
}

impl std::fmt::Display for KeepAlive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KeepAlive::Forever => f.write_str("forever"),
            KeepAlive::For(time) => write!(f, "{}s", time.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let parse = |text: &str| text.parse::<KeepAlive>();
        assert_eq!(parse("5m"), Ok(KeepAlive::For(Duration::from_secs(300))));
        assert_eq!(parse("1.5h"), Ok(KeepAlive::For(Duration::from_secs(5400))));
        assert_eq!(parse("0"), Ok(KeepAlive::For(Duration::ZERO)));
        assert_eq!(parse("-1"), Ok(KeepAlive::Forever));
        for wrong in ["", "m", "5 minutes", "nan", "inf", "1e99"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(KeepAlive::from_json(&Value::from(-1)), Ok(KeepAlive::Forever));
        assert!(KeepAlive::from_json(&Value::Null).is_err());
    }
}
