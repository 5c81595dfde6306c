use std::fmt;

/// The most characters of a name that a message shows.
const LONGEST: usize = 80;

/// Displays a name from a file on one line: quoted, with control characters escaped, shortened.
pub(crate) struct Quote<'a>(pub(crate) &'a str);

impl fmt::Display for Quote<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head: String = self.0.chars().take(LONGEST).flat_map(char::escape_debug).collect();
        let more = if self.0.chars().nth(LONGEST).is_some() { "…" } else { "" };
        write!(f, "'{head}{more}'")
    }
}
