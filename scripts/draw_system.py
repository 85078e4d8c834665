"""Draw the processes, light and dark: `python -m scripts.draw_system` writes docs/_static/system-*.svg."""

from xml.sax.saxutils import escape

from backend.settings import PROJECT_ROOT

WIDTH, HEIGHT = 880, 430
LIGHT = {
    "ink": "#23263a",
    "soft": "#575b70",
    "line": "#9a9daa",
    "fill": "#ffffff",
    "accent": "#2f4fb8",
    "wash": "#e8edfb",
}
DARK = {
    "ink": "#edebe4",
    "soft": "#b3b6c2",
    "line": "#666a7a",
    "fill": "#232634",
    "accent": "#9db4f5",
    "wash": "#2b3350",
}
BOXES = (  # x, y, width, height, title, what it does, whether it stores data
    (20, 30, 170, 64, "Browser", "pages, live updates", False),
    (20, 130, 170, 64, "Scripts and agents", "JSON API, command line", False),
    (270, 80, 160, 64, "api", "pages and JSON", False),
    (510, 30, 160, 64, "Postgres", "jobs, rollouts, results", True),
    (510, 130, 160, 64, "Valkey", "wake-ups only", True),
    (270, 250, 160, 64, "worker: cpu", "evaluate, check, grade", False),
    (510, 250, 160, 64, "worker: gpu", "train, sample, export", False),
    (20, 250, 170, 64, "Model endpoint", "any OpenAI-compatible", False),
    (270, 350, 400, 64, "env host", "environment servers in a sandbox, no network", False),
    (710, 130, 150, 64, "housekeeping", "schedules, recovery", False),
)
ARROWS = (  # points from start to end, label, label's place
    ("190,62 230,62 230,100 270,100", "", (0, 0)),
    ("190,162 230,162 230,124 270,124", "", (0, 0)),
    ("430,100 470,100 470,62 510,62", "rows", (478, 56)),
    ("430,124 470,124 470,162 510,162", "wake-up", (440, 182)),
    ("560,194 560,218 350,218 350,250", "", (0, 0)),
    ("590,194 590,250", "", (0, 0)),
    ("430,272 470,272 470,234 690,234 690,78 670,78", "", (0, 0)),
    ("670,282 690,282 690,234", "claim, store", (698, 262)),
    ("270,282 190,282", "replies", (208, 274)),
    ("350,314 350,350", "reset, step", (360, 336)),
    ("590,314 590,350", "reset, step", (600, 336)),
    ("785,130 785,62 670,62", "", (0, 0)),
)


def draw(colors: dict[str, str]) -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="system-ui, Segoe UI, Roboto, Noto Sans, Liberation Sans, sans-serif">',
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{colors["line"]}"/></marker></defs>',
    ]
    stroke, ink = 'stroke-width="1.5" stroke', colors["ink"]
    for points, label, (x, y) in ARROWS:
        parts.append(f'<polyline points="{points}" fill="none" {stroke}="{colors["line"]}" marker-end="url(#end)"/>')
        if label:
            parts.append(f'<text x="{x}" y="{y}" font-size="12" fill="{colors["soft"]}">{escape(label)}</text>')
    for x, y, width, height, title, text, stores in BOXES:
        fill, edge = (colors["wash"], colors["accent"]) if stores else (colors["fill"], colors["line"])
        place = f'x="{x + width / 2:g}" text-anchor="middle"'
        parts += [
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{fill}" {stroke}="{edge}"/>',
            f'<text {place} y="{y + 27}" font-size="15" font-weight="600" fill="{ink}">{escape(title)}</text>',
            f'<text {place} y="{y + 47}" font-size="12" fill="{colors["soft"]}">{escape(text)}</text>',
        ]
    return "\n".join((*parts, "</svg>", ""))


if __name__ == "__main__":
    for name, colors in (("light", LIGHT), ("dark", DARK)):
        (PROJECT_ROOT / "docs" / "_static" / f"system-{name}.svg").write_text(draw(colors))
