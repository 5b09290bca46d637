// Errors as values: a status and one line of text.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "fa_tune.h"

namespace fa_tune::core {

struct [[nodiscard]] Status {
    fa_tune_status code = FA_TUNE_OK;
    std::string text;

    bool ok() const { return code == FA_TUNE_OK; }
};

// A failure with a text in the manner of printf.
__attribute__((format(printf, 2, 3))) inline Status failure(fa_tune_status code, const char* format,
                                                            ...) {
    char text[1024];
    std::va_list values;
    va_start(values, format);
    std::vsnprintf(text, sizeof text, format, values);
    va_end(values);
    return {code, text};
}

}  // namespace fa_tune::core
