//! A picture of a load: how times are distributed, and the throughput over time.

use std::fmt::Write;
use std::time::Duration;

use super::client::Served;
use super::quantiles::gaps;
use super::report::{Report, milliseconds};
use crate::svg::{Style, line, nice_step, open, shortened, text};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 660.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = WIDTH - 24.0;
/// Top and bottom of the two panels.
const TIMES: (f64, f64) = (126.0, 330.0);
const RATES: (f64, f64) = (420.0, 610.0);
/// Columns of the throughput.
const COLUMNS: usize = 120;

const STYLE: &str = "\
.small{font-size:10.5px}\
.curve{fill:none;stroke-width:2}\
.bar{fill:#3b82f6;fill-opacity:.75}";
const COLOURS: [&str; 3] = ["#f97316", "#3b82f6", "#a855f7"];

/// Draws a report and the requests that it is made of.
pub(super) fn draw(report: &Report, served: &[Served]) -> String {
    let mut svg = String::new();
    let title = format!("Load on {}", report.subject.model);
    open(&mut svg, WIDTH, HEIGHT, &title, Style { own: STYLE, dark: "" });
    text(&mut svg, 24.0, 34.0, "title", "start", &shortened(&title, 80));
    text(&mut svg, 24.0, 56.0, "sub", "start", &report.load());
    let since_arrival = |one: &Served, time: Option<Duration>| {
        time.map(|time| time.saturating_sub(one.arrival).as_secs_f64())
    };
    let finished = || served.iter().filter(|one| one.failure.is_none());
    let curves = [
        (
            "time to first token",
            finished().filter_map(|one| since_arrival(one, one.tokens.first().copied())).collect(),
        ),
        ("time between tokens", finished().flat_map(|one| gaps(&one.tokens)).collect()),
        ("queueing time", finished().filter_map(|one| since_arrival(one, one.admitted)).collect()),
    ];
    distributions(&mut svg, curves);
    throughput(&mut svg, report, served);
    svg.push_str("</svg>\n");
    svg
}

/// For each kind of time the share of values that do not exceed it, over a logarithmic axis.
fn distributions(svg: &mut String, curves: [(&str, Vec<f64>); 3]) {
    let (top, bottom) = TIMES;
    text(svg, 24.0, top - 42.0, "", "start", "share of tokens or requests that waited no longer");
    let least = 1e-5;
    let longest = curves.iter().flat_map(|(_, times)| times).copied().fold(1e-3, f64::max);
    let (first, last) = (-5, longest.log10().ceil() as i32);
    let x = |seconds: f64| {
        let share = (seconds.max(least).log10() - f64::from(first)) / f64::from((last - first).max(1));
        LEFT + share.clamp(0.0, 1.0) * (RIGHT - LEFT)
    };
    let y = |share: f64| bottom - share * (bottom - top);
    for decade in first..=last {
        let seconds = 10f64.powi(decade);
        let label = if seconds >= 1.0 { format!("{seconds:.0} s") } else { milliseconds(seconds) };
        line(svg, "grid", (x(seconds), top), (x(seconds), bottom));
        text(svg, x(seconds), bottom + 17.0, "small", "middle", &label);
    }
    for (share, label) in [(0.0, "0 %"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %")] {
        line(svg, if share == 0.0 { "axis" } else { "grid" }, (LEFT, y(share)), (RIGHT, y(share)));
        text(svg, LEFT - 8.0, y(share) + 4.0, "small", "end", label);
    }
    for (n, ((name, mut times), colour)) in curves.into_iter().zip(COLOURS).enumerate() {
        let left = 24.0 + n as f64 * 180.0;
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"11\" height=\"11\" rx=\"2\" fill=\"{colour}\"/>",
            top - 29.5
        );
        text(svg, left + 18.0, top - 20.0, "", "start", name);
        times.sort_by(f64::total_cmp);
        let Some(last) = times.len().checked_sub(1) else { continue };
        // As many points as can be told apart.
        let points = times.len().min(400);
        let _ = write!(svg, "<path class=\"curve\" stroke=\"{colour}\" d=\"");
        for point in 0..points {
            let at = if points > 1 { point * last / (points - 1) } else { 0 };
            let share = (at + 1) as f64 / times.len() as f64;
            let command = if point == 0 { 'M' } else { 'L' };
            let _ = write!(svg, "{command}{:.1} {:.1}", x(times[at]), y(share));
        }
        let _ = writeln!(svg, "\"/>");
    }
}

/// Generated tokens per second, in columns of time.
fn throughput(svg: &mut String, report: &Report, served: &[Served]) {
    let (top, bottom) = RATES;
    text(svg, 24.0, top - 26.0, "", "start", "generated tokens per second");
    if report.seconds <= 0.0 {
        return;
    }
    let column = report.seconds / COLUMNS as f64;
    let mut counts = [0u32; COLUMNS];
    for token in served.iter().flat_map(|one| &one.tokens) {
        counts[((token.as_secs_f64() / column) as usize).min(COLUMNS - 1)] += 1;
    }
    let most = counts.iter().map(|n| f64::from(*n) / column).fold(1.0, f64::max);
    let y = |rate: f64| bottom - rate / most * (bottom - top);
    let x = |seconds: f64| LEFT + seconds / report.seconds * (RIGHT - LEFT);
    let step = nice_step(most);
    for tick in 0..=(most / step) as usize {
        let rate = tick as f64 * step;
        line(svg, if tick == 0 { "axis" } else { "grid" }, (LEFT, y(rate)), (RIGHT, y(rate)));
        text(svg, LEFT - 8.0, y(rate) + 4.0, "small", "end", &format!("{rate:.0}"));
    }
    for (n, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let (left, top) = (x(n as f64 * column), y(f64::from(*count) / column));
        let (width, height) = ((RIGHT - LEFT) / COLUMNS as f64 - 1.0, bottom - top);
        let _ = writeln!(
            svg,
            "<rect class=\"bar\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        );
    }
    let step = nice_step(report.seconds);
    let digits = if step < 1.0 { (-step.log10()).ceil() as usize } else { 0 };
    for tick in 0..=(report.seconds / step) as usize {
        let seconds = tick as f64 * step;
        text(svg, x(seconds), bottom + 17.0, "small", "middle", &format!("{seconds:.digits$} s"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::example;
    use super::*;

    #[test]
    fn curves_and_columns_are_drawn() {
        let (report, served) = example();
        let svg = draw(&report, &served);
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("class=\"curve\"").count(), 3);
        // Two requests of two tokens each, at different times; the last time is in the last column.
        assert_eq!(svg.matches("class=\"bar\"").count(), 4);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let nothing = draw(&report, &[]);
        assert_eq!(nothing.matches("class=\"curve\"").count(), 0);
    }
}
