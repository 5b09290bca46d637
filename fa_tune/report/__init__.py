"""From measurements to tables: rows, the files they are read from, the formats they leave in."""

from __future__ import annotations
