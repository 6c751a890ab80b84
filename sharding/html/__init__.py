"""Building blocks of HTML pages and of notebook output: elements, SVG charts, number formats, the page around them."""
