"""The documentation site: Markdown in, static pages with their own search out. `make docs` builds it."""

import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

project = "Proctor"
extensions = ["myst_parser"]
exclude_patterns = ["_theme"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
smartquotes = False
nitpicky = True

html_theme = "proctor"
html_theme_path = ["_theme"]
html_static_path = [
    "_static",
    "../frontend/static/css/tokens.css",
    "../frontend/static/icon.svg",
    "../frontend/static/js/theme.js",
]
html_title = "Proctor"
html_copy_source = False
html_use_index = False
html_permalinks_icon = "#"


def write_reference(*_: object) -> None:
    """Write the pages that the program itself knows best, before Sphinx looks for pages."""
    from scripts.reference import write_pages

    write_pages(HERE)


class Translator(HTML5Translator):
    """Wide tables scroll in a box instead of widening the page."""

    def visit_table(self, node: nodes.table) -> None:
        self.body.append('<div class="table">\n')
        super().visit_table(node)

    def depart_table(self, node: nodes.table) -> None:
        super().depart_table(node)
        self.body.append("</div>\n")


def setup(app: Sphinx) -> None:
    app.set_translator("html", Translator)
    app.connect("builder-inited", write_reference)
