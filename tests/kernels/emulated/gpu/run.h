// Launching one kernel, from Python: see tests/kernels/emulated/emulation.py.
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include "machine.h"

// Each family's kernels have one of their own.
namespace fa_tune::sm80 {
unsigned char shared_memory[1];
}
namespace fa_tune::sm90 {
unsigned char shared_memory[1];
}
namespace fa_tune::sm90::backward {
unsigned char shared_memory[1];
}
namespace fa_tune::decode {
unsigned char shared_memory[1];
}

namespace emulator {

// A kernel's parameters are passed by value, each from the memory that `values` says.
template <class... Parameters, std::size_t... kNumbers>
void call(void (*kernel)(Parameters...), void* const* values, std::index_sequence<kNumbers...>) {
    kernel(*static_cast<std::remove_cv_t<Parameters>*>(values[kNumbers])...);
}

template <class... Parameters>
std::string run_kernel(void (*kernel)(Parameters...), void* const* values, Launch launch,
                       const Schedule& schedule) {
    launch.kernel = [=] { call(kernel, values, std::index_sequence_for<Parameters...>{}); };
    return run(launch, schedule);
}

}  // namespace emulator

// One of a library's kernels, by its number.  Writes "" or what went wrong to `error`.
#define EMULATOR_LIBRARY(number, kernel)                                                           \
    extern "C" void emulate_##number(                                                              \
        void* const* values, const unsigned* grid, const unsigned* block, unsigned cluster,        \
        unsigned smem_bytes, unsigned resident, const emulator::Region* hidden, unsigned n_hidden, \
        const emulator::Schedule* schedule, char* error, unsigned capacity) {                      \
        const emulator::Launch launch{{grid[0], grid[1], grid[2]},                                 \
                                      {block[0], block[1], block[2]},                              \
                                      cluster,                                                     \
                                      smem_bytes,                                                  \
                                      resident,                                                    \
                                      {hidden, hidden + n_hidden},                                 \
                                      {}};                                                         \
        const std::string text = emulator::run_kernel(kernel, values, launch, *schedule);          \
        std::snprintf(error, capacity, "%s", text.c_str());                                        \
    }
