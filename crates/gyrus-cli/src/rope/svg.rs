//! A picture of a rope: its spectrum, and a vector turning with position.

use std::f64::consts::TAU;
use std::fmt::Write;

use crate::svg::{Style, line, open, shortened, text};

use super::report::{AS_GIVEN, Band, Kind, Report, in_words, scaling_in_words};

const WIDTH: f64 = 960.0;
/// Where the spectrum is drawn.
const PLOT: Frame = Frame { left: 84.0, top: 92.0, width: 690.0, height: 330.0 };
/// Where the dials begin.
const DIALS_TOP: f64 = 540.0;
const DIAL: f64 = 17.0;

/// What only this picture has.
const STYLE: &str = "\
.mark{stroke:#d29922;stroke-dasharray:5 4;stroke-width:1.2}\
.marktext{fill:#bb8009}\
.plain{fill:none;stroke:#7d8590;stroke-opacity:.55;stroke-width:1.5;stroke-dasharray:2 3}\
.curve{fill:none;stroke-width:2;stroke-opacity:.45}\
.dial{fill:#7d8590;fill-opacity:.07;stroke:#7d8590;stroke-opacity:.35}\
.hand{stroke-width:2.4;stroke-linecap:round}";
const DARK: &str = ".marktext{fill:#d29922}";

fn colour(band: Band) -> &'static str {
    match band {
        Band::Kept => "#2da44e",
        Band::Ramp => "#d29922",
        Band::Stretched => "#d1495b",
        Band::Still => "#7d8590",
    }
}

/// Lines of several ropes in one picture.
const CURVES: [&str; 4] = ["#3b82f6", "#a855f7", "#14b8a6", "#f97316"];

struct Frame {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

/// A spectrum to draw, and what to call it.
struct Series<'a> {
    kind: &'a Kind,
    label: String,
}

/// Draws a report, and another one over it.
pub(crate) fn draw(report: &Report, other: Option<&Report>) -> String {
    let several = other.is_some() || report.kinds.len() > 1;
    let series: Vec<Series<'_>> = [Some(report), other]
        .into_iter()
        .flatten()
        .flat_map(|report| report.kinds.iter().map(move |kind| (report, kind)))
        .map(|(report, kind)| Series {
            kind,
            label: match (other.is_some(), kind.layers.as_str()) {
                (_, "all") if report.name == AS_GIVEN => scaling_in_words(kind),
                (_, "all") => report.name.trim_start_matches("scaling=").to_owned(),
                (true, layers) => format!("{}, {layers}", report.name),
                (false, layers) => layers.to_owned(),
            },
        })
        .take(CURVES.len())
        .collect();
    let Some(first) = report.kinds.first() else { return String::new() };
    let shown = shown_pairs(first);
    let height = DIALS_TOP + 34.0 + shown.len() as f64 * (2.0 * DIAL + 12.0) + 16.0;
    let mut svg = String::new();
    let style = Style { own: STYLE, dark: DARK };
    open(&mut svg, WIDTH, height, &format!("Rotary embedding of {}", report.name), style);
    let title = match other {
        _ if report.name == AS_GIVEN => "Rotary embedding".to_owned(),
        Some(other) => format!("{} and {}", report.name, other.name),
        None => report.name.clone(),
    };
    text(&mut svg, 24.0, 34.0, "title", "start", &title);
    let words = match first.layers.as_str() {
        "all" => in_words(first),
        layers => format!("{layers}: {}", in_words(first)),
    };
    text(&mut svg, 24.0, 56.0, "sub", "start", &words);
    text(&mut svg, 24.0, 76.0, "sub", "start", "wavelength of each pair, in positions");
    spectrum(&mut svg, report, &series, several);
    // One of several curves keeps its colour.
    let tone = |band| if several { CURVES[0] } else { colour(band) };
    dials(&mut svg, report, first, &shown, tone);
    svg.push_str("</svg>\n");
    svg
}

fn spectrum(svg: &mut String, report: &Report, series: &[Series<'_>], several: bool) {
    let pairs = series.iter().map(|s| s.kind.pairs.len()).max().unwrap_or(1).max(2);
    let waves = || series.iter().flat_map(|s| s.kind.pairs.iter().filter_map(|p| p.wavelength));
    let plain = || series.iter().flat_map(|s| s.kind.rope.unscaled()).map(|f| TAU / f);
    let longest = waves().chain(plain()).fold(10.0, f64::max);
    // From one position up to the power of ten above the longest wave.
    let decades = longest.log10().ceil();
    let x = |pair: f64| PLOT.left + pair / (pairs - 1) as f64 * PLOT.width;
    let y = |wave: f64| PLOT.top + PLOT.height * (1.0 - wave.log10().clamp(0.0, decades) / decades);

    for decade in 0..=decades as i32 {
        let at = y(10f64.powi(decade));
        line(svg, "grid", (PLOT.left, at), (PLOT.left + PLOT.width, at));
        text(svg, PLOT.left - 10.0, at + 4.0, "", "end", &decade_name(decade));
    }
    let step = nice_step(pairs);
    for pair in (0..pairs).step_by(step) {
        let at = x(pair as f64);
        line(svg, "axis", (at, PLOT.top + PLOT.height), (at, PLOT.top + PLOT.height + 5.0));
        text(svg, at, PLOT.top + PLOT.height + 20.0, "", "middle", &pair.to_string());
    }
    line(svg, "axis", (PLOT.left, PLOT.top + PLOT.height), (PLOT.left + PLOT.width, PLOT.top + PLOT.height));
    text(svg, PLOT.left + PLOT.width / 2.0, PLOT.top + PLOT.height + 42.0, "", "middle", "pair");

    let right = PLOT.left + PLOT.width;
    let mut marks: Vec<(f64, String)> = Vec::new();
    if let Some(original) = series[0].kind.original() {
        marks.push((original, format!("original context {original}")));
    }
    if let Some(context) = report.context.map(|c| c as f64).filter(|&c| Some(c) != series[0].kind.original())
    {
        marks.push((context, format!("context {context}")));
    }
    for (wave, name) in marks.into_iter().filter(|(wave, _)| (1.0..=10f64.powf(decades)).contains(wave)) {
        line(svg, "mark", (PLOT.left, y(wave)), (right, y(wave)));
        text(svg, PLOT.left + 8.0, y(wave) - 6.0, "marktext", "start", &name);
    }

    for (n, s) in series.iter().enumerate() {
        let unscaled = s.kind.rope.unscaled().into_iter().enumerate();
        if s.kind.pairs.iter().any(|p| p.band != Band::Kept) {
            let points = unscaled.map(|(i, f)| (x(i as f64), y(TAU / f)));
            polyline(svg, "plain", "", points);
        }
        let points = s.kind.pairs.iter().filter_map(|p| Some((x(p.pair as f64), y(p.wavelength?))));
        let stroke = if several { CURVES[n] } else { "#7d8590" };
        polyline(svg, "curve", &format!(" stroke=\"{stroke}\""), points);
        for pair in &s.kind.pairs {
            let Some(wave) = pair.wavelength else { continue };
            let fill = if several { CURVES[n] } else { colour(pair.band) };
            let (cx, cy) = (x(pair.pair as f64), y(wave));
            let radius = if pairs > 96 { 2.4 } else { 3.2 };
            let _ = writeln!(svg, "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"{radius}\" fill=\"{fill}\"/>");
        }
    }
    legend(svg, right + 22.0, series, several);
}

fn legend(svg: &mut String, left: f64, series: &[Series<'_>], several: bool) {
    let mut entries: Vec<(&str, String)> = Vec::new();
    if several {
        entries.extend(series.iter().enumerate().map(|(n, s)| (CURVES[n], s.label.clone())));
    } else {
        let kind = series[0].kind;
        for band in [Band::Kept, Band::Ramp, Band::Stretched, Band::Still] {
            if kind.count(band) > 0 {
                entries.push((colour(band), format!("{} {}", kind.count(band), band.name())));
            }
        }
    }
    for (n, (colour, name)) in entries.iter().enumerate() {
        let top = PLOT.top + 8.0 + n as f64 * 22.0;
        let _ = writeln!(svg, "<circle cx=\"{left}\" cy=\"{top}\" r=\"5\" fill=\"{colour}\"/>");
        text(svg, left + 12.0, top + 4.0, "", "start", &shortened(name, 22));
    }
    if series.iter().any(|s| s.kind.pairs.iter().any(|p| p.band != Band::Kept)) {
        let top = PLOT.top + 8.0 + entries.len() as f64 * 22.0;
        let _ = writeln!(svg, "<path class=\"plain\" d=\"M{:.1} {top}h14\"/>", left - 7.0);
        text(svg, left + 12.0, top + 4.0, "", "start", "without scaling");
    }
}

/// The positions of the dials' columns: doubling, so that every pair is seen to move.
fn columns(report: &Report, kind: &Kind) -> Vec<u32> {
    let stretch = kind.pairs.iter().filter_map(|p| p.stretch).fold(1.0, f64::max);
    // Scaling is there to be seen in the context it makes possible.
    let grown = kind.original().map(|original| original * stretch);
    let reach = report.context.map(|c| c as f64).or(grown).unwrap_or(65_536.0);
    let all: Vec<u32> = std::iter::once(0).chain((0..31).map(|n| 1 << n)).collect();
    let within = all.iter().filter(|&&p| f64::from(p) <= reach.max(16.0)).count();
    let most = 20;
    // Near ones are of interest first, but the far end must be there too.
    let step = within.div_ceil(most).max(1);
    all[..within].iter().copied().step_by(step).collect()
}

/// Rotated pairs from the highest to the lowest frequency.
fn shown_pairs(kind: &Kind) -> Vec<usize> {
    let rotated = kind.pairs.iter().filter(|p| p.wavelength.is_some()).count().max(1);
    let count = rotated.min(8);
    let mut pairs: Vec<usize> =
        (0..count).map(|n| if count == 1 { 0 } else { n * (rotated - 1) / (count - 1) }).collect();
    pairs.dedup();
    pairs
}

fn dials(
    svg: &mut String,
    report: &Report,
    kind: &Kind,
    shown: &[usize],
    tone: impl Fn(Band) -> &'static str,
) {
    if kind.pairs.is_empty() {
        return;
    }
    let columns = columns(report, kind);
    let left = 150.0;
    let step = (WIDTH - left - 30.0) / columns.len() as f64;
    text(svg, 24.0, DIALS_TOP - 28.0, "title", "start", "One vector rotated by position");
    text(
        svg,
        24.0,
        DIALS_TOP - 8.0,
        "sub",
        "start",
        "each row is a pair of its elements, each column a position",
    );
    for (c, position) in columns.iter().enumerate() {
        let x = left + (c as f64 + 0.5) * step;
        text(svg, x, DIALS_TOP + 18.0, "", "middle", &position_name(*position));
    }
    for (r, &pair) in shown.iter().enumerate() {
        let y = DIALS_TOP + 34.0 + DIAL + r as f64 * (2.0 * DIAL + 12.0);
        let Some(wave) = kind.pairs[pair].wavelength else { continue };
        text(svg, 24.0, y - 2.0, "", "start", &format!("pair {pair}"));
        text(svg, 24.0, y + 13.0, "", "start", &format!("wave {}", wave_name(wave)));
        for (c, &position) in columns.iter().enumerate() {
            let x = left + (c as f64 + 0.5) * step;
            let (sin, cos) = kind.spectrum.angle(pair, position).sin_cos();
            let (tip_x, tip_y) = (x + cos * (DIAL - 4.0), y - sin * (DIAL - 4.0));
            let tone = tone(kind.pairs[pair].band);
            let _ = writeln!(
                svg,
                "<circle class=\"dial\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{DIAL}\"/>\
                 <path class=\"hand\" stroke=\"{tone}\" d=\"M{x:.1} {y:.1}L{tip_x:.1} {tip_y:.1}\"/>\
                 <circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.2\" fill=\"{tone}\"/>"
            );
        }
    }
}

fn polyline(svg: &mut String, class: &str, more: &str, points: impl Iterator<Item = (f64, f64)>) {
    let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(svg, "<polyline class=\"{class}\"{more} points=\"{}\"/>", points.join(" "));
}

fn decade_name(decade: i32) -> String {
    match decade {
        0..=2 => 10u32.pow(decade as u32).to_string(),
        3..=5 => format!("{} k", 10u32.pow(decade as u32 - 3)),
        6..=8 => format!("{} M", 10u32.pow(decade as u32 - 6)),
        _ => format!("1e{decade}"),
    }
}

fn position_name(position: u32) -> String {
    match position {
        0..1024 => position.to_string(),
        1024..0x10_0000 => format!("{}k", position / 1024),
        _ => format!("{}M", position / 0x10_0000),
    }
}

fn wave_name(wave: f64) -> String {
    match wave {
        w if w < 100.0 => format!("{w:.1}"),
        w if w < 10_000.0 => format!("{w:.0}"),
        w if w < 1e6 => format!("{:.0} k", w / 1e3),
        w => format!("{:.1} M", w / 1e6),
    }
}

fn nice_step(pairs: usize) -> usize {
    [1, 2, 4, 8, 16, 32, 64].into_iter().find(|step| pairs / step <= 17).unwrap_or(pairs / 16)
}
