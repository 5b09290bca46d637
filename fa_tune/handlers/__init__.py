"""What worker processes do on the GPU; see fa_tune.worker.  Never imported by the parent."""
