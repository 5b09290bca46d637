// Launches of one thread: what is refused, what is loaded when, on which device.
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <thread>

#include "check.h"
#include "fixture.h"
#include "stub_driver.h"

namespace {

void loads_once_and_makes_each_device_ready_once() {
    stub_reset();
    Variant variant = Variant::persistent();
    variant.symbol = "loaded_once";
    const fa_tune::Kernel kernel = variant.kernel();
    CHECK(stub_calls("cuLibraryLoadData") == 0);
    for (int i = 0; i < 3; ++i) {
        CHECK(launch(kernel, problem(), nullptr, 0) == FA_TUNE_OK);
        CHECK(launch(kernel, problem(), nullptr, 1) == FA_TUNE_OK);
    }
    CHECK(stub_calls("cuLibraryLoadData") == 1);
    CHECK(stub_calls("cuKernelSetAttribute") == 2);
    CHECK(stub_shared_limit("loaded_once", 0) == 200 << 10);
    CHECK(stub_shared_limit("loaded_once", 1) == 200 << 10);
    CHECK(stub_launch_count() == 6);
}

void the_device_is_made_current_only_if_another_is() {
    stub_reset();
    const fa_tune::Kernel kernel = Variant::persistent().kernel();
    CHECK(launch(kernel, problem()) == FA_TUNE_OK);  // no context at all: device 0
    CHECK(last_launch().device == 0);
    CHECK(stub_current_device() == -1);
    stub_use_device(1);
    const std::size_t pushed = stub_calls("cuCtxPushCurrent");
    CHECK(launch(kernel, problem()) == FA_TUNE_OK);
    CHECK(launch(kernel, problem(), nullptr, 1) == FA_TUNE_OK);
    CHECK(last_launch().device == 1);
    CHECK(stub_calls("cuCtxPushCurrent") == pushed);
    CHECK(launch(kernel, problem(), nullptr, 0) == FA_TUNE_OK);
    CHECK(last_launch().device == 0);
    CHECK(stub_current_device() == 1);
    CHECK_FAILS(launch(kernel, problem(), nullptr, 7), FA_TUNE_DRIVER_ERROR, "cuDeviceGet");
    CHECK_REFUSED(launch(kernel, problem(), nullptr, 64), "64");
    CHECK(stub_current_device() == 1);
}

void what_no_launch_may_have_is_refused() {
    stub_reset();
    const fa_tune::Kernel kernel = Variant::persistent().kernel();
    const auto refuses = [&](fa_tune_problem p, const char* part) {
        CHECK_REFUSED(launch(kernel, p), part);
    };
    for (auto size : {&fa_tune_problem::batch, &fa_tune_problem::heads, &fa_tune_problem::kv_heads,
                      &fa_tune_problem::seq_len_q, &fa_tune_problem::seq_len_kv}) {
        for (const std::int64_t value :
             {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 31, INT64_MAX, INT64_MIN}) {
            fa_tune_problem p = problem();
            p.*size = value;
            refuses(p, "must be at");
        }
    }
    fa_tune_problem p = problem();
    p.kv_heads = 3;
    refuses(p, "3 kv heads do not divide 4 heads");
    p = problem();
    p.mask = 5;
    refuses(p, "unknown mask 5");
    p = problem();
    p.diagonal = 1;
    refuses(p, "diagonal");
    p = problem();
    p.dtype = 6;
    refuses(p, "unknown dtype 6");
    for (const double scale : {-1.0, 1e-31, 1e31, std::nan("")}) {
        p = problem();
        p.softmax_scale = scale;
        refuses(p, "softmax_scale");
    }
    // Problems of other kernels.
    p = problem();
    p.mask = FA_TUNE_MASK_CAUSAL;
    refuses(p, "does not compute b2_h4_kv4_q512_k512_d128_fp16_causal");
    p = problem();
    p.lse = 1;
    refuses(p, "_lse");
    p = problem();
    p.dtype = FA_TUNE_DTYPE_BF16;
    refuses(p, "bf16");
    p = problem();
    p.d_head = 64;
    refuses(p, "d64");
    refuses(problem(1 << 20, 1 << 20), "more than 1073741824 tiles");
    refuses(problem(INT_MAX, INT_MAX, INT_MAX), "more than 1073741824 tiles");
    CHECK(stub_launch_count() == 0);
}

void tensors_that_16_byte_copies_cannot_read_are_refused() {
    stub_reset();
    const fa_tune::Kernel kernel = Variant::persistent().kernel();
    const fa_tune_problem p = problem();
    const auto call = [&](fa_tune_tensors given) { return launch(kernel, p, given); };
    for (int role = FA_TUNE_TENSOR_Q; role <= FA_TUNE_TENSOR_O; ++role) {
        fa_tune_tensors given = tensors(p);
        given.of[role].address = static_cast<char*>(given.of[role].address) + 8;
        CHECK_REFUSED(call(given), "must have every row at a multiple of 16 bytes");
        given = tensors(p);
        given.of[role].address = nullptr;
        CHECK_REFUSED(call(given), "which the launch does not give");
        for (auto stride : {&fa_tune_tensor::batch_stride, &fa_tune_tensor::seq_stride,
                            &fa_tune_tensor::head_stride}) {
            for (const std::int64_t value : {std::int64_t{132}, INT64_MAX, INT64_MIN + 1}) {
                given = tensors(p);
                given.of[role].*stride = value;
                CHECK_REFUSED(call(given), "16 bytes");
            }
        }
        given = tensors(p);
        given.of[role].head_stride = INT64_MIN;  // a multiple, but none for a tensor map
        CHECK_REFUSED(call(given), "the driver made no tensor map");
    }
    CHECK(stub_launch_count() == 0);
}

// Kernels have them in 32 bits.
void strides_that_would_be_cut_are_refused() {
    stub_reset();
    const fa_tune::Kernel kernel = Variant::plain().kernel();
    const fa_tune_problem p = problem();
    const struct {
        fa_tune_tensor_role role;
        std::int64_t fa_tune_tensor::* stride;
    } strides[] = {{FA_TUNE_TENSOR_ALIBI_SLOPES, &fa_tune_tensor::batch_stride},
                   {FA_TUNE_TENSOR_K_SCALE, &fa_tune_tensor::batch_stride},
                   {FA_TUNE_TENSOR_V_SCALE, &fa_tune_tensor::head_stride}};
    for (const auto& [role, stride] : strides) {
        fa_tune_tensors given = tensors(p);
        given.of[role].*stride = std::int64_t{1} << 31;
        CHECK(launch(kernel, p, given) == FA_TUNE_OK);  // not used
        given.of[role].address = given.of[FA_TUNE_TENSOR_Q].address;
        CHECK_REFUSED(launch(kernel, p, given), "must fit 32 bits");
        given.of[role].*stride -= 1;
        CHECK(launch(kernel, p, given) == FA_TUNE_OK);
    }
}

// Any integers: a refusal or a launch, and nothing that a sanitizer finds.
void any_bits_are_refused_or_launched() {
    stub_reset();
    const fa_tune::Kernel maps = Variant::persistent().kernel();
    const fa_tune::Kernel plain = Variant::plain().kernel();
    const fa_tune::Kernel shared = Variant::shared().kernel();
    std::mt19937_64 dice(14);
    const auto some = [&](std::int64_t usual) -> std::int64_t {
        const std::int64_t odd[] = {0,       -1,      1,         usual ^ 1,
                                    INT_MAX, INT_MIN, INT64_MAX, INT64_MIN,
                                    1 << 30, 65536,   usual / 2, std::int64_t(dice())};
        return dice() % 12 != 0 ? usual : odd[dice() % std::size(odd)];
    };
    int launched = 0;
    for (int i = 0; i < 20000; ++i) {
        fa_tune_problem p = problem();
        for (std::int64_t* field :
             {&p.batch, &p.heads, &p.kv_heads, &p.seq_len_q, &p.seq_len_kv, &p.diagonal}) {
            *field = some(*field);
        }
        for (std::int32_t* field : {&p.operation, &p.dtype, &p.d_head, &p.mask, &p.lse}) {
            *field = static_cast<std::int32_t>(some(*field));
        }
        fa_tune_tensors given = tensors(p);
        for (fa_tune_tensor& tensor : given.of) {
            for (std::int64_t* stride :
                 {&tensor.batch_stride, &tensor.seq_stride, &tensor.head_stride}) {
                *stride = some(*stride);
            }
        }
        const fa_tune::Kernel& kernel = i % 3 == 0 ? maps : i % 3 == 1 ? plain : shared;
        const fa_tune_status status = launch(kernel, p, given);
        CHECK(status == FA_TUNE_OK || status == FA_TUNE_INVALID);
        launched += status == FA_TUNE_OK;
    }
    CHECK(launched > 1000 && launched < 19000);
    CHECK(stub_launch_count() == static_cast<std::size_t>(launched));
}

void blocks_that_do_not_divide_need_a_ragged_kernel() {
    stub_reset();
    Variant variant = Variant::persistent();
    variant.plan.ragged = 0;
    const fa_tune::Kernel kernel = variant.kernel();
    CHECK(launch(kernel, problem(1, 1, 512)) == FA_TUNE_OK);
    CHECK_REFUSED(launch(kernel, problem(1, 1, 500)), "blocks 128x128");
}

void a_binary_of_another_architecture_is_refused() {
    stub_reset();
    Variant variant = Variant::persistent();
    const struct {
        int capability, portability;
        bool runs;
    } cases[] = {
        {90, FA_TUNE_PORTABILITY_EXACT, true},   {90, FA_TUNE_PORTABILITY_MINOR, true},
        {80, FA_TUNE_PORTABILITY_LATER, true},   {80, FA_TUNE_PORTABILITY_MINOR, false},
        {100, FA_TUNE_PORTABILITY_MINOR, false}, {100, FA_TUNE_PORTABILITY_LATER, false},
        {80, FA_TUNE_PORTABILITY_EXACT, false},
    };
    for (const auto& [capability, portability, runs] : cases) {
        variant.plan.compute_capability = capability;
        variant.plan.portability = portability;
        const fa_tune::Kernel kernel = variant.kernel();
        const fa_tune_status status = launch(kernel, problem());
        CHECK(status == (runs ? FA_TUNE_OK : FA_TUNE_INVALID));
        if (!runs) CHECK(says(fa_tune_last_error(), "does not run on NVIDIA H200, sm_90"));
    }
}

void plans_out_of_range_are_refused() {
    const auto refuses = [](Variant variant, const char* part) {
        fa_tune_kernel* kernel = nullptr;
        const fa_tune_kernel_info info = variant.info();
        CHECK_REFUSED(fa_tune_kernel_create(&info, &kernel), part);
    };
    const struct {
        std::int32_t fa_tune_launch_plan::* field;
        std::int32_t value;
        const char* name;
    } cases[] = {
        {&fa_tune_launch_plan::grid, -1, "grid"},
        {&fa_tune_launch_plan::tile_rows, 0, "tile_rows"},
        {&fa_tune_launch_plan::ctas_per_sm, 0, "ctas_per_sm"},
        {&fa_tune_launch_plan::threads, 1025, "threads"},
        {&fa_tune_launch_plan::cluster_y, 0, "cluster_y"},
        {&fa_tune_launch_plan::q_box_rows, 257, "q_box_rows"},
        {&fa_tune_launch_plan::kv_box_rows, 0, "kv_box_rows"},
        {&fa_tune_launch_plan::share_keys, 64, "share_keys"},
        {&fa_tune_launch_plan::counter_bytes, 4097, "counter_bytes"},
    };
    for (const auto& [field, value, name] : cases) {
        Variant variant = Variant::persistent();
        variant.launch.*field = value;
        refuses(variant, name);
    }
    Variant variant = Variant::persistent();
    variant.plan.block_q = 0;
    refuses(variant, "block_q");
    for (const char* params : {"unheard_of", static_cast<const char*>(nullptr)}) {
        variant = Variant::persistent();
        variant.launch.params = params;
        refuses(variant, "params");
    }
    variant = Variant::persistent();
    variant.plan.launches = 9;
    refuses(variant, "launches");
    variant = Variant::persistent();
    variant.symbol = "";
    refuses(variant, "no symbol");
    fa_tune_kernel* kernel = nullptr;
    CHECK(fa_tune_kernel_create(nullptr, &kernel) == FA_TUNE_INVALID);
    CHECK(fa_tune_launch(nullptr, nullptr, nullptr, 0, nullptr) == FA_TUNE_INVALID);
    fa_tune_kernel_destroy(nullptr);
    fa_tune_table_destroy(nullptr);
    CHECK(std::strcmp(fa_tune_kernel_config(nullptr), "") == 0);
    CHECK(fa_tune_kernel_plan(nullptr) == nullptr);
}

// Functions that somebody else has loaded.
void adopted_functions_are_launched_on_their_device_alone() {
    stub_reset();
    Variant variant = Variant::persistent();
    variant.symbol = "adopted";
    const fa_tune::Kernel loaded = variant.kernel();
    CHECK(launch(loaded, problem(), nullptr, 1) == FA_TUNE_OK);
    void* function = stub_kernel("adopted");
    CHECK(function != nullptr);
    fa_tune_kernel_info info = variant.info();
    info.symbols = nullptr;
    info.image = nullptr;
    fa_tune_kernel* made = nullptr;
    CHECK(fa_tune_kernel_adopt(&info, &function, 1, 0, &made) == FA_TUNE_OK);
    const std::size_t loads = stub_calls("cuLibraryLoadData");
    const fa_tune_problem p = problem();
    const fa_tune_tensors given = tensors(p);
    CHECK(fa_tune_launch(made, &p, &given, 1, nullptr) == FA_TUNE_OK);
    CHECK(std::strcmp(last_launch().symbol, "adopted") == 0 && last_launch().device == 1);
    CHECK_REFUSED(fa_tune_launch(made, &p, &given, 0, nullptr), "adopted on another");
    CHECK(stub_calls("cuLibraryLoadData") == loads);
    const std::uint64_t counters = counters_of(last_launch());
    CHECK(counters != 0);  // its calls follow one another, whatever the stream, captured or not
    CHECK(fa_tune_launch(made, &p, &given, 1, stub_stream(1)) == FA_TUNE_OK);
    CHECK(counters_of(last_launch()) == counters);
    fa_tune_kernel_destroy(made);
    CHECK(fa_tune_kernel_adopt(&info, &function, 1, 2, &made) == FA_TUNE_OK);
    CHECK(fa_tune_launch(made, &p, &given, 1, nullptr) == FA_TUNE_OK);
    CHECK(last_launch().grid[0] == 2 && counters_of(last_launch()) != counters);
    fa_tune_kernel_destroy(made);
    CHECK(launch(loaded, problem()) == FA_TUNE_OK);  // what it was made of is still there
    function = nullptr;
    CHECK_REFUSED(fa_tune_kernel_adopt(&info, &function, 1, 0, &made), "no function");
}

// A launch passes what is described.
void what_is_described_is_launched() {
    stub_reset();
    for (Variant variant : {Variant::persistent(), Variant::plain(), Variant::shared()}) {
        const fa_tune::Kernel kernel = variant.kernel();
        const fa_tune_problem p = problem();
        const fa_tune_tensors given = tensors(p);
        CHECK(launch(kernel, p) == FA_TUNE_OK);
        const stub_launch launched = last_launch();
        const fa_tune_device_facts facts{132, 0, 60 << 20, nullptr};
        fa_tune_description found{};
        CHECK(fa_tune_describe(kernel.get(), &p, &given, &facts, 0, &found) == FA_TUNE_OK);
        for (int i = 0; i < 3; ++i) {
            CHECK(launched.grid[i] == found.grid[i] && launched.block[i] == found.block[i]);
            CHECK(launched.cluster[i] == found.cluster[i]);
        }
        CHECK(launched.shared_bytes == found.shared_bytes);
        // Counters, which a description takes from the caller, are in the first bytes: of no
        // interest is where.  The rest is the same to the last byte.
        const unsigned char* params = launched.params + 128 * found.map_count;
        std::size_t differ = 0;
        for (std::size_t i = 0; i < launched.params_bytes - 128 * found.map_count; ++i) {
            differ += params[i] != reinterpret_cast<const unsigned char*>(found.params)[i];
        }
        CHECK(differ <= (variant.launch.counter_bytes > 0 ? sizeof(void*) : 0));
        for (std::uint32_t i = 0; i < found.map_count; ++i) {
            CHECK(found.maps[i].address ==
                  reinterpret_cast<std::uintptr_t>(given.of[FA_TUNE_TENSOR_Q + i].address));
        }
        std::size_t bytes = 0;
        CHECK(fa_tune_workspace_bytes(kernel.get(), &p, 0, &bytes) == FA_TUNE_OK);
        CHECK(bytes == found.workspace_bytes);
        CHECK_REFUSED(fa_tune_describe(kernel.get(), &p, &given, &facts, 1, &found),
                      "has no launch 1");
        CHECK(fa_tune_describe(kernel.get(), &p, &given, nullptr, 0, &found) == FA_TUNE_INVALID);
    }
}

void clusters_are_stated_and_divide_the_grid() {
    stub_reset();
    Variant variant = Variant::persistent();
    variant.launch.cluster_x = 2;
    const fa_tune::Kernel kernel = variant.kernel();
    CHECK(launch(kernel, problem()) == FA_TUNE_OK);
    CHECK(last_launch().cluster[0] == 2 && last_launch().cluster[1] == 1);
    CHECK(last_launch().grid[0] == 32 && last_launch().block[0] == 384);
    CHECK_REFUSED(launch(kernel, problem(1, 1, 384)), "no whole clusters of 2 x 1");
}

void a_call_may_be_several_launches() {
    stub_reset();
    const fa_tune_plan plan = [] {
        fa_tune_plan made = Variant::persistent().plan;
        made.launches = 2;
        return made;
    }();
    const fa_tune_launch_plan launches[] = {Variant::persistent().launch, Variant::plain().launch};
    const char* symbols[] = {"first", "second"};
    const std::string image = "second 176\nfirst 128 128 128 128 56\n";
    const fa_tune::Kernel kernel({"two", plan, launches, symbols, image.c_str(), image.size() + 1});
    CHECK(launch(kernel, problem()) == FA_TUNE_OK);
    CHECK(stub_launch_count() == 2);
    stub_launch first{};
    CHECK(stub_get_launch(0, &first) == 1 && std::string(first.symbol) == "first");
    CHECK(std::string(last_launch().symbol) == "second");
    CHECK(last_launch().grid[1] == 4);
}

void failures_of_the_driver_have_its_name_and_pass() {
    const char* functions[] = {"cuLibraryLoadData",   "cuLibraryGetKernel", "cuKernelSetAttribute",
                               "cuKernelGetFunction", "cuFuncLoad",         "cuLaunchKernel",
                               "cuStreamIsCapturing", "cuCtxGetCurrent",    "cuStreamGetId"};
    for (const char* function : functions) {
        stub_reset();
        const fa_tune::Kernel kernel = Variant::persistent().kernel();
        stub_fail(function, 1, 1);
        CHECK_FAILS(launch(kernel, problem()), FA_TUNE_DRIVER_ERROR, function);
        CHECK(says(fa_tune_last_error(), "CUDA_ERROR_INVALID_VALUE (error 1)"));
        CHECK(stub_launch_count() == 0);
        CHECK(launch(kernel, problem()) == FA_TUNE_OK);
        CHECK(stub_launch_count() == 1);
    }
    stub_reset();
    const fa_tune::Kernel kernel = Variant::persistent().kernel();
    stub_fail("cuTensorMapEncodeTiled", 1, 1);
    const fa_tune_problem unseen = problem(3, 5, 640);  // no map of it is kept
    CHECK_REFUSED(launch(kernel, unseen), "tensor map (error 1)");
    CHECK(launch(kernel, unseen) == FA_TUNE_OK);
}

std::uint64_t word_of_map(int map, int word) {
    std::uint64_t found = 0;
    std::memcpy(&found, last_launch().params + 128 * map + 8 * word, sizeof found);
    return found;
}

void a_thread_makes_maps_of_new_tensors_only() {
    stub_reset();
    constexpr int kAddress = 0, kBatchStride = 8;
    const fa_tune::Kernel kernel = Variant::persistent().kernel();
    const fa_tune_problem p = problem(3, 6, 896);
    const auto makes = [&](const fa_tune_tensors& given) {
        const std::size_t before = stub_calls("cuTensorMapEncodeTiled");
        CHECK(fa_tune_launch(kernel.get(), &p, &given, -1, nullptr) == FA_TUNE_OK);
        int i = 0;
        for (int role = FA_TUNE_TENSOR_Q; role <= FA_TUNE_TENSOR_O; ++role) {
            const fa_tune_tensor* const tensor = &given.of[role];
            CHECK(word_of_map(i, kAddress) == reinterpret_cast<std::uintptr_t>(tensor->address));
            CHECK(word_of_map(i++, kBatchStride) ==
                  2 * static_cast<std::uint64_t>(tensor->batch_stride));
        }
        return stub_calls("cuTensorMapEncodeTiled") - before;
    };
    const fa_tune_tensors first = tensors(p);
    fa_tune_tensors wider = first, moved = first;
    wider.of[FA_TUNE_TENSOR_K].batch_stride += 4096;
    moved.of[FA_TUNE_TENSOR_O].address =
        static_cast<char*>(first.of[FA_TUNE_TENSOR_O].address) + 256;
    CHECK(makes(first) == 4);
    CHECK(makes(first) == 0);
    CHECK(makes(wider) == 1);
    CHECK(makes(moved) <= 2);
    CHECK(makes(first) <= 3);
    std::size_t elsewhere = 0;
    std::thread([&] { elsewhere = makes(first); }).join();
    CHECK(elsewhere == 4);
}

}  // namespace

int main() {
    fa_tune::init();
    loads_once_and_makes_each_device_ready_once();
    the_device_is_made_current_only_if_another_is();
    what_no_launch_may_have_is_refused();
    tensors_that_16_byte_copies_cannot_read_are_refused();
    strides_that_would_be_cut_are_refused();
    any_bits_are_refused_or_launched();
    blocks_that_do_not_divide_need_a_ragged_kernel();
    a_binary_of_another_architecture_is_refused();
    plans_out_of_range_are_refused();
    adopted_functions_are_launched_on_their_device_alone();
    what_is_described_is_launched();
    clusters_are_stated_and_divide_the_grid();
    a_call_may_be_several_launches();
    failures_of_the_driver_have_its_name_and_pass();
    a_thread_makes_maps_of_new_tensors_only();
}
