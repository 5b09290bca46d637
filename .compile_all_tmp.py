import time
from fa_tune.arch import parse_arch
from fa_tune.artifacts import ArtifactStore
from fa_tune.compile import build
from tests.gpu.cases import *
from tests.gpu.test_poison import problems
from tests.gpu.test_grid import FIXED_SEED, COUNT
from fa_tune.compile import BuildRequest
from pathlib import Path
if __name__ == "__main__":
    l=parse_arch("sm_90"); cf=grid_configs(l)
    reqs=dict.fromkeys([*by_request(random_grid(FIXED_SEED,COUNT,cf),"sm_90"), *by_request(fa_forward_cases(l)[0],"sm_90")])
    fam=families.get("sm80")
    for p in problems("sm_90"):
        reqs[BuildRequest(p.variant, fam.traits(fam.parse(p.variant.config), p.workload), "sm_90")]=None
    fresh=by_request(random_grid(77,COUNT,cf),"sm_90")
    print(len(reqs), len(set(fresh)-set(reqs)), flush=True)
    t=time.time()
    rs=build(list(reqs), ArtifactStore(Path("/tmp/gen_cache")), jobs=2)
    print(time.time()-t)
    rows=sorted(((r.artifact.compile_s if r.artifact else -1, r.request.variant.config, r.request.traits, r.outcome, r.reason, r.artifact.resources.spill_store_bytes if r.artifact else None) for r in rs), key=lambda x: -x[0])
    for r in rows[:12]: print(r)
    print([r for r in rows if r[3]!="ok"])
    print("total", sum(r[0] for r in rows))
