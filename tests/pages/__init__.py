"""HTML pages in a headless browser: their pictures beside stored ones, and what must hold for their layout."""
