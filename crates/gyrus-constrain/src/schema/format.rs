//! Formats of strings.

/// What a format means for generation.
pub(super) enum Format {
    /// The engine enforces it.
    Enforced,
    /// A pattern of the engine's syntax, and the longest string.
    Pattern(String, Option<u32>),
    /// A published format that is not enforced, so it is refused.
    Refused,
    /// Not a format of JSON Schema: an annotation.
    Unknown,
}

/// Days of each month; 29 February in leap years only. Not the year 0000, which few calendars have.
const DATE: &str = concat!(
    "(?:(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
);

/// Without leap seconds: which minutes have one depends on the offset. Nanoseconds at most: models would write digits for
/// ever.
const TIME: &str = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,9})?(?:[zZ]|[-+](?:[01][0-9]|2[0-3]):[0-5][0-9])";

/// A label of a host name, of at most 63 characters. Two hyphens in third place are for encoded names (`xn--`), whose
/// rules are no regular expression.
const LABEL: &str = "[a-zA-Z0-9](?:[a-zA-Z0-9]|[a-zA-Z0-9-][a-zA-Z0-9]|[a-zA-Z0-9-]{2}[a-zA-Z0-9]\
                     |[a-zA-Z0-9-](?:[a-zA-Z0-9][a-zA-Z0-9-]|-[a-zA-Z0-9])[a-zA-Z0-9-]{0,58}[a-zA-Z0-9])?";

pub(super) fn format(name: &str) -> Format {
    let whole = |body: &str| format!("^(?:{body})$");
    match name {
        "date" => Format::Pattern(whole(DATE), None),
        "time" => Format::Pattern(whole(TIME), None),
        "date-time" => Format::Pattern(whole(&format!("{DATE}[tT]{TIME}")), None),
        "hostname" => Format::Pattern(whole(&format!("{LABEL}(?:[.]{LABEL})*")), Some(253)),
        "duration" | "email" | "ipv4" | "ipv6" | "uuid" | "uri" => Format::Enforced,
        "idn-email"
        | "idn-hostname"
        | "uri-reference"
        | "iri"
        | "iri-reference"
        | "uri-template"
        | "json-pointer"
        | "relative-json-pointer"
        | "regex" => Format::Refused,
        _ => Format::Unknown,
    }
}
