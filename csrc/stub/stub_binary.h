// Binaries as the stub of the driver loads them.
//
// One is text: a line for each kernel, its symbol and the sizes of its parameters in bytes.
//
//     my_kernel 128 128 64
//
// Of a cubin or PTX every symbol that stands in it is a kernel, whose parameters are not recorded.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

constexpr int kDevices = 2;

struct Kernel {
    std::string symbol;
    std::vector<std::size_t> params;
    int shared_limit[kDevices] = {-1, -1};
};

class Library {
  public:
    explicit Library(const char* code) : compiled_(compiled(code)) {
        std::istringstream lines(compiled_.empty() ? code : "");
        for (std::string line; std::getline(lines, line);) {
            std::istringstream words(line);
            std::string symbol;
            words >> symbol;
            Kernel* const kernel = add(symbol);
            for (std::size_t bytes = 0; words >> bytes;) kernel->params.push_back(bytes);
        }
    }

    const std::vector<std::unique_ptr<Kernel>>& kernels() const { return kernels_; }

    // Null if there is none.
    Kernel* find(const std::string& symbol) {
        for (auto& kernel : kernels_) {
            if (kernel->symbol == symbol) return kernel.get();
        }
        return compiled_.find(symbol) == std::string::npos ? nullptr : add(symbol);
    }

  private:
    // The binary, whole, if it is a compiled one.
    static std::string compiled(const char* code) {
        if (std::strncmp(code, "\x7f\x45LF", 4) == 0) return cubin(code);
        return std::strstr(code, ".version") != nullptr ? code : "";
    }

    // It ends with its headers of sections or of segments.
    static std::string cubin(const char* code) {
        std::uint64_t offsets[2];
        std::uint16_t sizes[6];
        std::memcpy(offsets, code + 0x20, sizeof offsets);
        std::memcpy(sizes, code + 0x34, sizeof sizes);
        return {code, std::max(offsets[0] + std::uint64_t{sizes[1]} * sizes[2],
                               offsets[1] + std::uint64_t{sizes[3]} * sizes[4])};
    }

    Kernel* add(const std::string& symbol) {
        kernels_.push_back(std::make_unique<Kernel>());
        kernels_.back()->symbol = symbol;
        return kernels_.back().get();
    }

    std::string compiled_;  // "" for text
    std::vector<std::unique_ptr<Kernel>> kernels_;
};
