//! What pictures are made of: SVG by hand, in tones that can be read on white and on black.

use std::fmt::Write;

/// What a picture adds to the style that all share.
pub(crate) struct Style {
    /// In any theme.
    pub(crate) own: &'static str,
    /// Where the reader's theme is dark.
    pub(crate) dark: &'static str,
}

const SHARED: &str = "\
text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;font-size:12px;fill:#7d8590}\
.title{font-size:17px;font-weight:600;fill:#6e7781}\
.sub{font-size:12.5px}\
.grid{stroke:#7d8590;stroke-opacity:.22;stroke-width:1}\
.axis{stroke:#7d8590;stroke-opacity:.7;stroke-width:1}";

/// Begins a picture; `</svg>` ends it.
pub(crate) fn open(svg: &mut String, width: f64, height: f64, title: &str, Style { own, dark }: Style) {
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height:.0}\" width=\"{width}\" \
         height=\"{height:.0}\" role=\"img\"><title>{}</title><style>{SHARED}{own}\
         @media(prefers-color-scheme:dark){{text{{fill:#8b949e}}.title{{fill:#c9d1d9}}{dark}}}\
         @media(prefers-color-scheme:light){{text{{fill:#57606a}}.title{{fill:#24292f}}}}</style>",
        escape(title)
    );
}

/// A line of text; `anchor` is `start`, `middle` or `end`.
pub(crate) fn text(svg: &mut String, x: f64, y: f64, class: &str, anchor: &str, content: &str) {
    let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
    let anchor = if anchor == "start" { String::new() } else { format!(" text-anchor=\"{anchor}\"") };
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\"{class}{anchor}>{}</text>", escape(content));
}

/// A straight line.
pub(crate) fn line(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let _ =
        writeln!(svg, "<path class=\"{class}\" d=\"M{:.1} {:.1}L{:.1} {:.1}\"/>", from.0, from.1, to.0, to.1);
}

/// Names come from files and options.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars().take(160) {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // Most control characters are not allowed in XML even as references.
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A text of at most so many characters.
pub(crate) fn shortened(text: &str, longest: usize) -> String {
    if text.chars().count() <= longest {
        return text.to_owned();
    }
    let head: String = text.chars().take(longest - 1).collect();
    format!("{head}…")
}

/// Between four and ten steps, of one, two or five of some power of ten.
pub(crate) fn nice_step(longest: f64) -> f64 {
    let power = 10f64.powf((longest / 10.0).log10().ceil());
    if longest / power <= 2.0 {
        power / 5.0
    } else if longest / power <= 4.0 {
        power / 2.0
    } else {
        power
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_few_and_round_steps() {
        for longest in [0.003, 1.0, 1.9, 4.0, 7.7, 10.0, 354.0, 999.0, 123_456.0] {
            let steps = longest / nice_step(longest);
            assert!((4.0..=10.0).contains(&steps), "{longest}: {steps}");
        }
    }
}
