// What becomes an exception of Python, by the name in front.
#pragma once

#include <stdexcept>
#include <string>

namespace fa_tune::op {

[[noreturn]] inline void fail(const std::string& text) { throw std::runtime_error(text); }

[[noreturn]] inline void refuse(const std::string& text) { fail("InvalidConfig: " + text); }

}  // namespace fa_tune::op
