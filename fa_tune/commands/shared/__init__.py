"""What several commands share: options, parameters, progress, output."""
