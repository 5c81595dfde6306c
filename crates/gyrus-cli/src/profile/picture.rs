//! A picture of a profile: a bar for each batch, as long as its time.

use std::fmt::Write;

use super::report::{Batch, Kernel, Report};
use crate::svg::{Style, line, nice_step, open, shortened, text};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 24.0;
/// Length of the bars.
const LENGTH: f64 = WIDTH - 2.0 * LEFT;
const BAR: f64 = 44.0;
/// Vertical offsets within a batch.
const BAR_TOP: f64 = 66.0;
const LEGEND_TOP: f64 = BAR_TOP + BAR + 62.0;
const LEGEND_ROW: f64 = 19.0;
/// Distance between columns of the legend.
const COLUMN: f64 = 472.0;
/// Longest name in characters.
const NAME: usize = 32;

const STYLE: &str = "\
.small{font-size:10.5px}\
.pale{fill-opacity:.38}\
.rest{fill:#7d8590;fill-opacity:.08;stroke:#7d8590;stroke-opacity:.45;stroke-dasharray:4 3}\
.whole{stroke:#7d8590;stroke-width:1.4;stroke-dasharray:4 3}";

/// Distinct on white and on black, adjacent ones most of all.
const COLOURS: [&str; 12] = [
    "#3b82f6", "#f97316", "#14b8a6", "#a855f7", "#d29922", "#d1495b", "#2da44e", "#ec4899", "#06b6d4",
    "#84a816", "#8b6f4e", "#64748b",
];

/// Draws a report.
pub(super) fn draw(report: &Report) -> String {
    let top = 84.0;
    let height = top + report.batches.iter().map(height_of).sum::<f64>();
    let mut svg = String::new();
    let style = Style { own: STYLE, dark: "" };
    open(&mut svg, WIDTH, height, &format!("GPU time of {} by kernel", report.model), style);
    text(&mut svg, LEFT, 34.0, "title", "start", &shortened(&report.model, 80));
    let words = format!("{} · {} · {}", report.architecture, report.precision, report.device);
    text(&mut svg, LEFT, 56.0, "sub", "start", &words);
    let words = "solid: least time to move a kernel's bytes; pale: the rest of its time; dashed: time \
                 between kernels";
    text(&mut svg, LEFT, 75.0, "sub", "start", words);
    let kinds = kinds(report);
    let mut at = top;
    for batch in &report.batches {
        draw_batch(&mut svg, at, batch, &kinds);
        at += height_of(batch);
    }
    svg.push_str("</svg>\n");
    svg
}

fn height_of(batch: &Batch) -> f64 {
    LEGEND_TOP + batch.kernels.len().div_ceil(2) as f64 * LEGEND_ROW + 12.0
}

/// The last part of a fused kernel's name, which decides its colour in all batches.
fn kind(kernel: &Kernel) -> &str {
    kernel.name.rsplit(" · ").next().unwrap_or(&kernel.name)
}

fn kinds(report: &Report) -> Vec<&str> {
    let mut kinds = Vec::new();
    for kernel in report.batches.iter().flat_map(|batch| &batch.kernels) {
        if !kinds.contains(&kind(kernel)) {
            kinds.push(kind(kernel));
        }
    }
    kinds
}

fn draw_batch(svg: &mut String, top: f64, batch: &Batch, kinds: &[&str]) {
    let colour = |kernel: &Kernel| {
        COLOURS[kinds.iter().position(|of| *of == kind(kernel)).unwrap_or(0) % COLOURS.len()]
    };
    let speed = match batch.tokens_per_second {
        s if s < 100.0 => format!("{s:.1}"),
        s => format!("{s:.0}"),
    };
    let heading = format!("{}: {}, {speed} tokens/s", batch.name, time(batch.microseconds));
    text(svg, LEFT, top + 22.0, "title", "start", &heading);
    let words = format!(
        "{} dispatches take {} one by one; moving their bytes takes {} at {:.0} GB/s from memory",
        batch.dispatches,
        time(batch.parts_microseconds),
        time(batch.roofline_microseconds),
        batch.memory_gigabytes_per_second
    );
    text(svg, LEFT, top + 41.0, "sub", "start", &words);
    let longest = batch.parts_microseconds.max(batch.microseconds);
    if longest <= 0.0 {
        return;
    }
    let x = |microseconds: f64| LEFT + microseconds / longest * LENGTH;
    let bar = top + BAR_TOP;
    axis(svg, bar + BAR, longest, x);
    let mut start = 0.0;
    let mut labelled = 0.0;
    for kernel in &batch.kernels {
        let (left, right) = (x(start), x(start + kernel.microseconds));
        segment(svg, kernel, colour(kernel), (left, right), bar);
        // A name is drawn above its segment if it does not overlap the previous one.
        let name = shortened(&kernel.name, 24);
        let wide = 5.6 * name.chars().count() as f64;
        if right - left >= wide && left >= labelled {
            text(svg, (left + right) / 2.0, bar - 6.0, "small", "middle", &name);
            labelled = (left + right + wide) / 2.0;
        }
        start += kernel.microseconds;
    }
    let end = x(batch.microseconds);
    let rest = end - x(start);
    if rest > 1.0 {
        let (left, width) = (x(start), rest - 0.5);
        let _ = writeln!(
            svg,
            "<rect class=\"rest\" x=\"{left:.2}\" y=\"{:.1}\" width=\"{width:.2}\" height=\"{:.1}\"/>",
            bar + 0.5,
            BAR - 1.0
        );
        if rest > 80.0 {
            text(svg, left + width / 2.0, bar + BAR / 2.0 + 4.0, "small", "middle", "between kernels");
        }
    } else {
        // Kernels that overlap take less time together than one by one.
        line(svg, "whole", (end, bar - 4.0), (end, bar + BAR + 4.0));
    }
    legend(svg, top + LEGEND_TOP, batch, colour);
}

/// A kernel's time, with the time of moving its bytes drawn solid.
fn segment(svg: &mut String, kernel: &Kernel, colour: &str, (left, right): (f64, f64), top: f64) {
    // A gap between segments, if they are wide enough.
    let width = if right - left > 3.0 { right - left - 1.0 } else { right - left };
    let solid = width * kernel.share_of_bandwidth.clamp(0.0, 1.0);
    let _ = writeln!(
        svg,
        "<rect class=\"pale\" x=\"{left:.2}\" y=\"{top:.1}\" width=\"{width:.2}\" height=\"{BAR}\" fill=\"{colour}\"/>\
         <rect x=\"{left:.2}\" y=\"{top:.1}\" width=\"{solid:.2}\" height=\"{BAR}\" fill=\"{colour}\"/>"
    );
}

fn axis(svg: &mut String, y: f64, longest: f64, x: impl Fn(f64) -> f64) {
    let y = y + 6.0;
    let step = nice_step(longest);
    line(svg, "axis", (x(0.0), y), (x(longest), y));
    let ticks = (longest / step).floor() as usize;
    for tick in 0..=ticks {
        let at = tick as f64 * step;
        line(svg, "axis", (x(at), y), (x(at), y + 4.0));
        let anchor = if tick == 0 {
            "start"
        } else if x(at) > WIDTH - 60.0 {
            "end"
        } else {
            "middle"
        };
        text(svg, x(at), y + 17.0, "small", anchor, &in_unit(at, unit(longest)));
    }
}

fn legend(svg: &mut String, top: f64, batch: &Batch, colour: impl Fn(&Kernel) -> &'static str) {
    let rows = batch.kernels.len().div_ceil(2);
    // Right edges of the numbers.
    let (each, share, bytes) = (292.0, 362.0, 440.0);
    for column in 0..batch.kernels.len().min(2) {
        let left = LEFT + column as f64 * COLUMN;
        for (end, name) in [(each, "time"), (share, "of step"), (bytes, "of bandwidth")] {
            text(svg, left + end, top - 20.0, "small", "end", name);
        }
    }
    for (n, kernel) in batch.kernels.iter().enumerate() {
        let left = LEFT + (n / rows) as f64 * COLUMN;
        let y = top + (n % rows) as f64 * LEGEND_ROW;
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"11\" height=\"11\" rx=\"2\" fill=\"{}\"/>",
            y - 9.5,
            colour(kernel)
        );
        let times = if kernel.count > 1 { format!(" × {}", kernel.count) } else { String::new() };
        let name = shortened(&kernel.name, NAME - times.chars().count());
        text(svg, left + 18.0, y, "", "start", &format!("{name}{times}"));
        text(svg, left + each, y, "", "end", &time(kernel.microseconds));
        text(svg, left + share, y, "", "end", &format!("{:.1} %", 100.0 * kernel.share));
        text(svg, left + bytes, y, "", "end", &format!("{:.0} %", 100.0 * kernel.share_of_bandwidth));
    }
}

/// A time with three digits.
fn time(microseconds: f64) -> String {
    in_unit(microseconds, unit(microseconds))
}

/// A unit in microseconds, and its name.
fn unit(microseconds: f64) -> (f64, &'static str) {
    match microseconds {
        m if m < 1e4 => (1.0, "µs"),
        m if m < 1e7 => (1e3, "ms"),
        _ => (1e6, "s"),
    }
}

fn in_unit(microseconds: f64, (size, name): (f64, &str)) -> String {
    match microseconds / size {
        v if v == 0.0 || v >= 100.0 => format!("{v:.0} {name}"),
        v if v >= 10.0 => format!("{v:.1} {name}"),
        v => format!("{v:.2} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::example;
    use super::*;

    #[test]
    fn every_kernel_has_a_segment_as_long_as_its_time() {
        let svg = draw(&example());
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("class=\"pale\"").count(), 4 + 4, "one for each kernel");
        assert!(svg.contains("a &quot;model&quot; | &lt;of&gt; &amp; ours"), "names are escaped");
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        // 100 of 400 µs, half of which are for the bytes.
        let quarter = LENGTH / 4.0 - 1.0;
        assert!(svg.contains(&format!("width=\"{quarter:.2}\"")), "{svg}");
        assert!(svg.contains(&format!("width=\"{:.2}\"", quarter / 2.0)), "{svg}");
    }

    #[test]
    fn times_have_three_digits() {
        assert_eq!(["0 µs", "1.50 µs", "412 µs", "15.0 ms"], [0.0, 1.5, 412.0, 15e3].map(time));
    }
}
