"""What is kept on disk: journal, recordings, registry, tables."""
