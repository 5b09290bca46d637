// The structs that kernels take after their tensor maps.  A file of this folder has one of them, by
// the name that a launch plan gives, and adds it to those that the core knows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "launch.h"
#include "shares.h"

namespace fa_tune::core {

// One launch of a call; `shares` where the plan has share_keys.
struct Launching {
    const fa_tune_launch_plan& plan;
    const Call& call;
    const Shares& shares;

    const fa_tune_tensor& tensor(fa_tune_tensor_role role) const { return call.tensors.of[role]; }
    template <class Value>
    Value* address(fa_tune_tensor_role role) const {
        return static_cast<Value*>(tensor(role).address);
    }
};

// The tensors whose maps a kernel takes before its parameters, in this order; those of a plan with
// q_box_rows.
struct MapRoles {
    int count;
    fa_tune_tensor_role of[sizeof fa_tune_description::maps / sizeof(fa_tune_tensor_map)];
};
constexpr MapRoles kForwardMaps{
    4, {FA_TUNE_TENSOR_Q, FA_TUNE_TENSOR_K, FA_TUNE_TENSOR_V, FA_TUNE_TENSOR_O}};

struct ParamsLayout {
    const char* name;
    std::size_t bytes;
    std::size_t counters;                                    // where the address of counters is
    bool shares;                                             // whether CTAs share blocks of keys
    void (*fill)(const Launching& launching, void* params);  // which are zeros
    MapRoles maps = kForwardMaps;
    // Device memory that a call needs for other than shares and packed batches.
    std::int64_t (*workspace)(const fa_tune_launch_plan& plan,
                              const fa_tune_problem& problem) = nullptr;

    static const ParamsLayout* find(const char* name);  // null: there is none
    static bool add(const ParamsLayout& layout);
};

// At global scope: the layout `called` of a struct with `counters`, filled in by
// `fill(const Launching&, Struct&)`.
#define FA_TUNE_PARAMS_LAYOUT(called, Struct, shares, fill) \
    FA_TUNE_PARAMS_LAYOUT_WITH(called, Struct, shares, fill, fa_tune::core::kForwardMaps, nullptr)

// The same with maps of other tensors and a workspace.
#define FA_TUNE_PARAMS_LAYOUT_WITH(called, Struct, shares, fill, maps, workspace) \
    extern "C" const fa_tune::core::ParamsLayout fa_tune_params_##called{         \
        #called,                                                                  \
        sizeof(Struct),                                                           \
        offsetof(Struct, counters),                                               \
        shares,                                                                   \
        [](const fa_tune::core::Launching& launching, void* params) {             \
            static_assert(sizeof(Struct) <= sizeof fa_tune_description::params);  \
            fill(launching, *static_cast<Struct*>(params));                       \
        },                                                                        \
        maps,                                                                     \
        workspace};                                                               \
    static const bool is_added_##called = fa_tune::core::ParamsLayout::add(fa_tune_params_##called)

}  // namespace fa_tune::core
