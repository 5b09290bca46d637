// What the tests say that must hold.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "fa_tune.h"

inline void check(bool holds, const char* what, const char* file, int line) {
    if (holds) return;
    std::fprintf(stderr, "%s:%d: not so: %s\nlast error: %s\n", file, line, what,
                 fa_tune_last_error());
    std::exit(1);
}

#define CHECK(condition) check(static_cast<bool>(condition), #condition, __FILE__, __LINE__)

inline bool says(const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
}

// A call that must fail with this status and say this.
#define CHECK_FAILS(call, status, part)          \
    do {                                         \
        CHECK((call) == (status));               \
        CHECK(says(fa_tune_last_error(), part)); \
    } while (false)

// One that is refused in such words.
#define CHECK_REFUSED(call, part) CHECK_FAILS(call, FA_TUNE_INVALID, part)
