"""The documentation site (extra `docs`): the repository's own pages, each under its path, so that links hold.

sphinx-build -W --keep-going -c docs/site . build/site
"""

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

import mmjax

project = "mmjax"
author = "The mmjax authors"
release = mmjax.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/site/index"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/*/*.md",
    "benchmarks/results/*.md",
]
html_theme = "furo"
html_title = f"mmjax {release}"

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_mock_imports: list[str] = []
python_use_unqualified_type_names = True
napoleon_google_docstring = True


def setup(app: Sphinx) -> None:
    """Shows gin, for which Pygments has no lexer, without colours."""
    app.add_lexer("gin", TextLexer)
