//! Times as text.

use std::time::{SystemTime, UNIX_EPOCH};

/// The time now, as RFC 3339 has it.
pub(crate) fn timestamp() -> String {
    of(SystemTime::now())
}

/// A time, as RFC 3339 has it.
pub(crate) fn of(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Years of 400 begin on the first of March, so that the leap day is the last.
    let shifted = days as i64 + 719_468;
    let era = shifted.div_euclid(146_097);
    let day = shifted.rem_euclid(146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, year) } else { (month - 9, year + 1) };
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let micros = since.subsec_micros();
    format!("{:04}-{month:02}-{of_month:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z", year + era * 400)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn days_of_leap_years_are_right() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (951_868_800, "2000-03-01T00:00:00.000000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(of(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
