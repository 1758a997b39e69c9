"""Korean for what stands around the sentences: headings, columns, words alone. The key is the English text."""

from __future__ import annotations

LABELS: dict[str, str] = {}
