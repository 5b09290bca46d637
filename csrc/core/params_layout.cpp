#include <string_view>
#include <vector>

#include "params/layout.h"

namespace fa_tune::core {

namespace {

// Filled in before anything runs.
std::vector<const ParamsLayout*>& known() {
    static std::vector<const ParamsLayout*> layouts;
    return layouts;
}

}  // namespace

bool ParamsLayout::add(const ParamsLayout& layout) {
    known().push_back(&layout);
    return true;
}

const ParamsLayout* ParamsLayout::find(const char* name) {
    for (const ParamsLayout* layout : known()) {
        if (std::string_view(layout->name) == name) return layout;
    }
    return nullptr;
}

}  // namespace fa_tune::core
