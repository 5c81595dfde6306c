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
        let (sign, mut rest) = text.strip_prefix('-').map_or((1.0, text), |rest| (-1.0, rest));
        let mut seconds = 0.0;
        // Clients in Go write several units: `1h30m0s`.
        loop {
            let (number, after) =
                rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len()));
            let (unit, after) =
                after.split_at(after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len()));
            let unit = match unit {
                "ns" => 1e-9,
                "us" | "µs" => 1e-6,
                "ms" => 1e-3,
                "" if number.len() == text.trim_start_matches('-').len() => 1.0,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return Err(Self::expected()),
            };
            seconds += number.parse::<f64>().map_err(|_| Self::expected())? * unit;
            if after.is_empty() {
                return Self::seconds(sign * seconds);
            }
            rest = after;
        }
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
        for (text, seconds) in [("5m0s", 300), ("1h30m0s", 5400), ("24h0m0s", 86_400), ("0s", 0), ("7", 7)] {
            assert_eq!(parse(text), Ok(KeepAlive::For(Duration::from_secs(seconds))), "{text}");
        }
        assert_eq!(parse("1.5s"), parse("1500ms"));
        assert_eq!(parse("-5m0s"), Ok(KeepAlive::Forever));
        for wrong in ["", "m", "5 minutes", "nan", "inf", "1e99", "5m5", "5m-1s", "--1", "-", "."] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(KeepAlive::from_json(&Value::from(-1)), Ok(KeepAlive::Forever));
        assert!(KeepAlive::from_json(&Value::Null).is_err());
    }
}
