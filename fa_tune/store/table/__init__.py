"""A result table: rows, columns, CSV."""
