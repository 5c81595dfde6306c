//! The date and time that `strftime_now` prints.

use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A date and time of the proleptic Gregorian calendar, without a time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DateTime {
    seconds: i64,
}

/// The parts of a [`DateTime`].
struct Civil {
    year: i64,
    /// From 1.
    month: i64,
    /// From 1.
    day: i64,
    /// From 0.
    day_of_year: i64,
    /// From Sunday, 0.
    weekday: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl DateTime {
    /// The time `seconds` after 1970-01-01, in the time zone of that clock.
    ///
    /// Years are clamped to 1 to 9999.
    pub fn from_unix(seconds: i64) -> DateTime {
        DateTime { seconds: seconds.clamp(-62_135_596_800, 253_402_300_799) }
    }

    /// Now, in UTC. The standard library has no local time; a caller with a time zone adds its offset and uses
    /// [`from_unix`](DateTime::from_unix). `None` on a platform without a clock, such as WebAssembly without an
    /// operating system.
    pub fn now_utc() -> Option<DateTime> {
        if cfg!(all(target_family = "wasm", target_os = "unknown")) {
            return None;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Some(DateTime::from_unix(i64::try_from(since).unwrap_or(i64::MAX)))
    }

    fn civil(self) -> Civil {
        let days = self.seconds.div_euclid(86_400);
        let in_day = self.seconds.rem_euclid(86_400);
        // With years that start in March the leap day is the last; there are 719468 days from 0000-03-01 to 1970.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * from_march + 2) / 153;
        let day = from_march - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        let leap_day = i64::from(leap && month > 2);
        Civil {
            year,
            month,
            day,
            day_of_year: before[(month - 1) as usize] + day - 1 + leap_day,
            weekday: (days + 4).rem_euclid(7),
            hour: in_day / 3_600,
            minute: in_day / 60 % 60,
            second: in_day % 60,
        }
    }
}

/// `datetime.strftime` in the C locale, on a platform with glibc.
pub(crate) fn strftime(time: &DateTime, format: &str) -> String {
    let civil = time.civil();
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let rest = chars.as_str();
        let flag = rest.chars().next().filter(|c| matches!(c, '-' | '_' | '0' | '^' | '#'));
        if flag.is_some() {
            chars.next();
        }
        match chars.next() {
            Some(directive) => match field(&civil, time, directive, flag) {
                Some(text) if flag == Some('^') => out.push_str(&text.to_uppercase()),
                Some(text) => out.push_str(&text),
                // An unknown directive is copied.
                None => {
                    out.push('%');
                    out.extend(flag);
                    out.push(directive);
                }
            },
            None => {
                out.push('%');
                out.extend(flag);
            }
        }
    }
    out
}

fn field(civil: &Civil, time: &DateTime, directive: char, flag: Option<char>) -> Option<String> {
    let number = |value: i64, width: usize, fill: char| match (flag, fill) {
        (Some('-'), _) => value.to_string(),
        (Some('_'), _) | (None, ' ') => format!("{value:width$}"),
        _ => format!("{value:0width$}"),
    };
    let day_name = DAYS[civil.weekday as usize];
    let month_name = MONTHS[(civil.month - 1) as usize];
    let hour12 = (civil.hour + 11) % 12 + 1;
    let format = |format: &str| Some(strftime(time, format));
    Some(match directive {
        'Y' => number(civil.year, 1, '0'),
        'C' => number(civil.year / 100, 2, '0'),
        'y' => number(civil.year % 100, 2, '0'),
        'm' => number(civil.month, 2, '0'),
        'd' => number(civil.day, 2, '0'),
        'e' => number(civil.day, 2, ' '),
        'H' => number(civil.hour, 2, '0'),
        'k' => number(civil.hour, 2, ' '),
        'I' => number(hour12, 2, '0'),
        'l' => number(hour12, 2, ' '),
        'M' => number(civil.minute, 2, '0'),
        'S' => number(civil.second, 2, '0'),
        'f' => "000000".into(),
        'j' => number(civil.day_of_year + 1, 3, '0'),
        'u' => number((civil.weekday + 6) % 7 + 1, 1, '0'),
        'w' => number(civil.weekday, 1, '0'),
        'U' => number((civil.day_of_year + 7 - civil.weekday) / 7, 2, '0'),
        'W' => number((civil.day_of_year + 7 - (civil.weekday + 6) % 7) / 7, 2, '0'),
        'G' => number(iso_week(civil).0, 1, '0'),
        'V' => number(iso_week(civil).1, 2, '0'),
        'a' => day_name[..3].into(),
        'A' => day_name.into(),
        'b' | 'h' => month_name[..3].into(),
        'B' => month_name.into(),
        'p' => if civil.hour < 12 { "AM" } else { "PM" }.into(),
        'P' => if civil.hour < 12 { "am" } else { "pm" }.into(),
        'c' => return format("%a %b %e %H:%M:%S %Y"),
        'D' | 'x' => return format("%m/%d/%y"),
        'F' => return format("%Y-%m-%d"),
        'T' | 'X' => return format("%H:%M:%S"),
        'R' => return format("%H:%M"),
        'r' => return format("%I:%M:%S %p"),
        's' => time.seconds.to_string(),
        'z' | 'Z' => String::new(),
        'n' => "\n".into(),
        't' => "\t".into(),
        '%' => "%".into(),
        _ => return None,
    })
}

/// The ISO year and week: weeks start on Monday, week 1 holds the year's first Thursday.
fn iso_week(civil: &Civil) -> (i64, i64) {
    let weeks_in = |year: i64| {
        let weekday_of_31_december = |y: i64| (y + y / 4 - y / 100 + y / 400) % 7;
        52 + i64::from(weekday_of_31_december(year) == 4 || weekday_of_31_december(year - 1) == 3)
    };
    let weekday = (civil.weekday + 6) % 7 + 1;
    let week = (civil.day_of_year + 1 - weekday + 10) / 7;
    if week < 1 {
        (civil.year - 1, weeks_in(civil.year - 1))
    } else if week > weeks_in(civil.year) {
        (civil.year + 1, 1)
    } else {
        (civil.year, week)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_printed_as_the_c_library_prints_them() {
        let all =
            "%Y-%m-%d %H:%M:%S|%d %b %Y|%A %B %e|%j %U %W %G-%V-%u %w|%I %p|%-d/%-m|%y %C|%c|%x %X|%q %%";
        let at = |seconds| strftime(&DateTime::from_unix(seconds), all);
        assert_eq!(
            at(1_722_297_600),
            "2024-07-30 00:00:00|30 Jul 2024|Tuesday July 30|212 30 31 2024-31-2 2|12 AM|30/7|24 20\
             |Tue Jul 30 00:00:00 2024|07/30/24 00:00:00|%q %"
        );
        assert_eq!(
            at(1_609_459_199),
            "2020-12-31 23:59:59|31 Dec 2020|Thursday December 31|366 52 52 2020-53-4 4|11 PM|31/12|20 20\
             |Thu Dec 31 23:59:59 2020|12/31/20 23:59:59|%q %"
        );
        assert_eq!(
            at(1_609_459_200 + 86_400),
            "2021-01-02 00:00:00|02 Jan 2021|Saturday January  2|002 00 00 2020-53-6 6|12 AM|2/1|21 20\
             |Sat Jan  2 00:00:00 2021|01/02/21 00:00:00|%q %"
        );
    }
}
