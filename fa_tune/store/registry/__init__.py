"""What is kept per GPU and workload: schema, file, lookup, merge."""
