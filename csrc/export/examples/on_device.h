// Tensors of an example on the device, for C++.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "device.h"

using Elements = std::vector<std::uint16_t>;

// A tensor's elements on the device, while it lives.
class OnDevice {
  public:
    explicit OnDevice(const Elements& elements)
        : address_(device_allocate(bytes_of(elements))), bytes_(bytes_of(elements)) {
        copy_to_device(address_, elements.data(), bytes_);
    }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;
    ~OnDevice() { device_free(address_); }

    device_address address() const { return address_; }
    void read(Elements& elements) const { copy_from_device(elements.data(), address_, bytes_); }

  private:
    static std::size_t bytes_of(const Elements& elements) {
        return elements.size() * sizeof elements[0];
    }
    device_address address_;
    std::size_t bytes_;
};

// Tensors as they are in memory, one after another.
inline void write_file(const char* path, const std::vector<const Elements*>& tensors) {
    std::FILE* const file = std::fopen(path, "wb");
    bool written = file != nullptr;
    for (const Elements* tensor : tensors) {
        written = written && std::fwrite(tensor->data(), sizeof(std::uint16_t), tensor->size(),
                                         file) == tensor->size();
    }
    if (file == nullptr || std::fclose(file) != 0 || !written) {
        throw std::runtime_error(std::string("cannot write ") + path);
    }
}
