"""Work of worker processes on the GPU; see fa_tune.workers.main.  Never imported by the parent."""
