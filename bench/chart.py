"""The chart of docs/benchmarks.md: one bar a test, as long as the ratio to the peer."""
from xml.sax.saxutils import escape

LEFT, BAR, ROW, GAP, TOP = 132, 430, 19, 30, 64
INK, SOFT, LINE, BETTER, WORSE = "#333", "#777", "#bbb", "#3b6ea5", "#b5533c"


def svg(rows):
    """`rows` are (model, threads, test, ours, theirs, ratio, samples), sorted by model."""
    most = max([row[5] for row in rows], default=1.0)
    scale = BAR / max(1.0, most)
    parts, y, last = [], TOP, None
    for model, threads, test, ours, theirs, ratio, _ in rows:
        if model != last:
            y += GAP if last else 0
            parts.append(text(LEFT, y - 6, model, weight="bold"))
            last = model
        parts.append(text(LEFT - 8, y + 13, test, anchor="end", fill=SOFT))
        colour = BETTER if ratio >= 1 else WORSE
        parts.append(f'<rect x="{LEFT}" y="{y + 2}" width="{ratio * scale:.1f}" height="{ROW - 5}" rx="2" fill="{colour}"/>')
        label = f"{ratio:.2f}× · {number(ours)} against {number(theirs)} tokens/s"
        parts.append(text(LEFT + ratio * scale + 8, y + 13, label))
        y += ROW
    one = LEFT + scale
    width, height = LEFT + BAR + 290, y + 16
    head = [
        text(16, 24, "Gyrus against llama.cpp on the CPU, two threads", size=15, weight="bold"),
        text(one, 44, "1×", anchor="middle", fill=SOFT),
        f'<line x1="{one:.1f}" y1="50" x2="{one:.1f}" y2="{y + 4}" stroke="{LINE}" stroke-dasharray="3 3"/>',
    ]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>', *parts, *head, "</svg>", ""])


def text(x, y, content, anchor="start", fill=INK, size=12, weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" font-size="{size}" '
            f'font-weight="{weight}">{escape(content)}</text>')


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
