"""The flow of a search, one file per stage: expand, reject, compile, verify, measure, decide.

Each function takes frozen options and a Progress, and returns values; nothing here prints.
"""
