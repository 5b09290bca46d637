"""From a config to a cubin: NVRTC in child processes, ptxas facts, a content-addressed cache."""
