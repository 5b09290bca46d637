// Element types, numbered as PyTorch numbers them.
// Generated from core/workload.py by `python -m fa_tune.export.config_headers`; do not edit.
#pragma once

namespace fa_tune {

enum class DType : int { FP16 = 5, BF16 = 15 };

}  // namespace fa_tune
