"""Which attention a program runs: seen below autograd, where compiled graphs come by as well."""
