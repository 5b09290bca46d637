// The library against the stub of the driver: what it chooses, and that every kernel is in it.
//
//     test_exported GPU        one of those of choices.h, counted from 1
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fa_tune/flash_kernels.cuh>
#include <initializer_list>
#include <string>

#include "choices.h"
#include "stub_driver.h"

namespace {

void check(bool holds, const std::string& what) {
    if (holds) return;
    std::fprintf(stderr, "not so: %s\nlast error: %s\n", what.c_str(), fa_tune_last_error());
    std::exit(1);
}

// Contiguous, at addresses where nothing is.
fa_tune_tensors tensors(const fa_tune_problem& p) {
    fa_tune_tensors made{};
    std::uintptr_t address = std::uintptr_t{1} << 40;
    const bool is_backward = p.operation == FA_TUNE_OPERATION_BACKWARD;
    const auto is_one_of = [](int role, std::initializer_list<int> roles) {
        return std::find(roles.begin(), roles.end(), role) != roles.end();
    };
    for (const int role :
         {FA_TUNE_TENSOR_Q, FA_TUNE_TENSOR_K, FA_TUNE_TENSOR_V, FA_TUNE_TENSOR_O, FA_TUNE_TENSOR_DO,
          FA_TUNE_TENSOR_DQ, FA_TUNE_TENSOR_DK, FA_TUNE_TENSOR_DV}) {
        if (role >= FA_TUNE_TENSOR_DO && !is_backward) break;
        fa_tune_tensor* const tensor = &made.of[role];
        const bool keys = is_one_of(
            role, {FA_TUNE_TENSOR_K, FA_TUNE_TENSOR_V, FA_TUNE_TENSOR_DK, FA_TUNE_TENSOR_DV});
        const bool values = is_one_of(
            role, {FA_TUNE_TENSOR_V, FA_TUNE_TENSOR_O, FA_TUNE_TENSOR_DO, FA_TUNE_TENSOR_DV});
        const std::int64_t columns = values && p.d_head_v != 0 ? p.d_head_v : p.d_head;
        tensor->address = reinterpret_cast<void*>(address);
        tensor->head_stride = columns;
        tensor->seq_stride = (keys ? p.kv_heads : p.heads) * columns;
        tensor->batch_stride = (keys ? p.seq_len_kv : p.seq_len_q) * tensor->seq_stride;
        address += std::uintptr_t{1} << 34;
    }
    if (p.lse != 0 || is_backward)
        made.of[FA_TUNE_TENSOR_LSE].address = reinterpret_cast<void*>(address);
    if (p.lse != 0 && is_backward)
        made.of[FA_TUNE_TENSOR_DLSE].address = reinterpret_cast<void*>(address);
    if (p.sink != 0) made.of[FA_TUNE_TENSOR_SINK].address = reinterpret_cast<void*>(address);
    if (p.alibi != 0)
        made.of[FA_TUNE_TENSOR_ALIBI_SLOPES].address = reinterpret_cast<void*>(address);
    if (p.packed != 0) {
        made.of[FA_TUNE_TENSOR_CU_SEQLENS_Q].address = reinterpret_cast<void*>(address);
        made.of[FA_TUNE_TENSOR_CU_SEQLENS_KV].address = reinterpret_cast<void*>(address);
    }
    made.workspace = reinterpret_cast<void*>(address << 1);
    return made;
}

void chooses_as_the_registry_did(int gpu) {
    for (const Choice& choice : choices) {
        if (choice.gpu != gpu) continue;
        fa_tune_kernel* const kernel = fa_tune::find(choice.problem, 0);
        check(std::string(fa_tune_kernel_config(kernel)) == choice.config,
              fa_tune::why(choice.problem, 0) + " instead of " + choice.config);
        const std::size_t before = stub_launch_count();
        const fa_tune_plan& plan = *fa_tune_kernel_plan(kernel);
        fa_tune::launch(choice.problem, tensors(choice.problem), 0);
        check(stub_launch_count() == before + static_cast<std::size_t>(plan.launches),
              "every launch reaches the driver");
    }
}

// A config that was not exported.
template <class Kernels>
void names_what_is_not_there(const Kernels& kernels, const fa_tune_problem& problem) {
    if (kernels.empty()) return;
    auto other = kernels.begin()->first;
    other.B_c = 7;
    try {
        fa_tune::find(other, problem, 0);
    } catch (const fa_tune::Error& error) {
        const std::string text = error.what();
        check(error.status() == FA_TUNE_NOT_FOUND, "the status says so");
        check(text.find(fa_tune::short_form(other)) != std::string::npos, text + " names it");
        check(text.find(kernels.begin()->second) != std::string::npos, text + " lists others");
        return;
    }
    check(false, "a config that was not exported is refused");
}

// The name of a config is the one that the table knows.
template <class Kernels>
void maps_lead_to_kernels(const Kernels& kernels, const fa_tune_problem& problem) {
    for (const auto& [config, name] : kernels) {
        check(fa_tune::name_of(config) == name, fa_tune::name_of(config) + " is " + name);
        fa_tune_problem of_config = problem;
        of_config.dtype = static_cast<std::int32_t>(config.dtype);
        of_config.d_head = config.d_head;
        of_config.d_head_v = config.d_head_v;
        try {
            check(std::string(fa_tune_kernel_config(fa_tune::find(config, of_config, 0))) == name,
                  std::string(name) + " is found");
        } catch (const fa_tune::Error& error) {  // compiled for another mask or device
            const std::string text = error.what();
            check(text.find("has no kernel for") != std::string::npos, text);
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    const int gpu = argc == 2 ? std::atoi(argv[1]) : 0;
    check(gpu >= 1 && gpu <= static_cast<int>(sizeof gpus / sizeof gpus[0]), "there is that GPU");
    const Gpu& here = gpus[gpu - 1];
    stub_set_device(here.name, here.compute_capability, 132, 50 << 20);
    fa_tune::prepare(0);
    chooses_as_the_registry_did(gpu);
    names_what_is_not_there(fa_tune::sm80_kernels, choices[0].problem);
    names_what_is_not_there(fa_tune::sm90_kernels, choices[0].problem);
    names_what_is_not_there(fa_tune::decode_kernels, choices[0].problem);
    names_what_is_not_there(fa_tune::sm90_bwd_kernels, choices[0].problem);
    maps_lead_to_kernels(fa_tune::sm80_kernels, choices[0].problem);
    maps_lead_to_kernels(fa_tune::sm90_kernels, choices[0].problem);
    maps_lead_to_kernels(fa_tune::decode_kernels, choices[0].problem);
    maps_lead_to_kernels(fa_tune::sm80_bwd_kernels, choices[0].problem);
    maps_lead_to_kernels(fa_tune::sm90_bwd_kernels, choices[0].problem);
}
