// An operator of fwd_out's schema that does nothing: what torch's call of one costs.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>

using torch::stable::Tensor;

namespace {

void nothing(const Tensor&, const Tensor&, const Tensor&, bool, bool, std::optional<double>,
             const Tensor&, std::optional<Tensor>) {}

}  // namespace

extern "C" __attribute__((visibility("default"))) void register_nothing() {
    using torch::stable::detail::StableLibrary;
    auto* library =
        new StableLibrary(StableLibrary::Kind::IMPL, "fa_tune_test", "CUDA", __FILE__, __LINE__);
    library->impl("nothing", TORCH_BOX(&nothing));
}
