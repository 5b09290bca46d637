// Failures: a status and one line of text, thrown within the core; the C ABI gives the status.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "fa_tune.h"

namespace fa_tune::core {

struct Failure : std::runtime_error {
    Failure(fa_tune_status status, const std::string& text)
        : std::runtime_error(text), code(status) {}

    fa_tune_status code;
};

inline long long wide(long long value) { return value; }  // for printf

// Throws a failure with a text in the manner of printf.
[[noreturn]] __attribute__((format(printf, 2, 3))) inline void fail(fa_tune_status code,
                                                                    const char* format, ...) {
    char text[1024];
    std::va_list values;
    va_start(values, format);
    std::vsnprintf(text, sizeof text, format, values);
    va_end(values);
    throw Failure(code, text);
}

struct Range {
    const char* name;
    int value, least, most;
};

// Refuses what is out of its range, of a plan.
inline void check_ranges(const char* plan, std::initializer_list<Range> ranges) {
    for (const auto& [name, value, least, most] : ranges) {
        if (value < least || value > most) {
            fail(FA_TUNE_INVALID, "%s of a %s must be between %d and %d, not %d", name, plan, least,
                 most, value);
        }
    }
}

}  // namespace fa_tune::core
