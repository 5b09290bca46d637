"""Judging a kernel that nobody has to trust: what it is given, what it may not do, the report."""
