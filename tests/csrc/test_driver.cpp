// Without a usable driver: one line that says so.  Argument: a part of it.
#include <cstring>

#include "check.h"
#include "fixture.h"

int main(int, char** arguments) {
    CHECK(fa_tune_abi_version() == FA_TUNE_ABI_VERSION);
    CHECK(std::strlen(fa_tune_last_error()) == 0);
    CHECK_FAILS(fa_tune_init(), FA_TUNE_NO_DRIVER, arguments[1]);
    CHECK(!says(fa_tune_last_error(), "\n"));
    const fa_tune::Kernel kernel = Variant::plain().kernel();  // needs none
    CHECK_FAILS(launch(kernel, problem()), FA_TUNE_NO_DRIVER, arguments[1]);
    CHECK_FAILS(fa_tune_prepare(kernel.get(), 0), FA_TUNE_NO_DRIVER, arguments[1]);
}
