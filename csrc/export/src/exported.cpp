#include "exported.h"

#include <atomic>
#include <mutex>

#include "exported_table.h"

extern "C" fa_tune_status fa_tune_exported(const fa_tune_table** table) {
    static std::atomic<const fa_tune_table*> made{nullptr};
    const fa_tune_table* found = made.load(std::memory_order_acquire);
    if (found == nullptr && table != nullptr) {
        static std::mutex mutex;
        const std::lock_guard<std::mutex> lock(mutex);
        found = made.load(std::memory_order_relaxed);
        if (found == nullptr) {
            fa_tune_table* fresh = nullptr;
            const fa_tune_status status = fa_tune_table_create(&exported_table, &fresh);
            if (status != FA_TUNE_OK) return status;
            made.store(fresh, std::memory_order_release);
            found = fresh;
        }
    }
    if (table == nullptr) return fa_tune_table_create(&exported_table, nullptr);  // says so
    *table = found;
    return FA_TUNE_OK;
}

// By the name that all exports have, for programs that look it up in a library that they load.
#undef fa_tune_exported
extern "C" FA_TUNE_API
    __attribute__((weak)) fa_tune_status fa_tune_exported(const fa_tune_table** table) {
    return FA_TUNE_EXPORTED(table);
}
