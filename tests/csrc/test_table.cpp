// Which kernel serves a problem.
#include <string>
#include <vector>

#include "check.h"
#include "fixture.h"
#include "stub_driver.h"

namespace {

constexpr const char* kGpu = "NVIDIA H200";

fa_tune_problem causal(fa_tune_problem p) {
    p.mask = FA_TUNE_MASK_CAUSAL;
    return p;
}

fa_tune_problem with_lse(fa_tune_problem p) {
    p.lse = 1;
    return p;
}

Variant named(const char* config, const Variant& like) {
    Variant made = like;
    made.config = config;
    return made;
}

std::string config_of(fa_tune_kernel* kernel) { return fa_tune_kernel_config(kernel); }

void exact_then_nearest_then_default() {
    Variant a = named("a", Variant::persistent()), b = named("b", Variant::persistent());
    Variant c = named("c", Variant::plain());
    const fa_tune_kernel_info kernels[] = {a.info(), b.info(), c.info()};
    const fa_tune_entry entries[] = {
        {kGpu, problem(2, 4, 512), "a"},
        {kGpu, problem(2, 4, 4096), "b"},
        {"NVIDIA H100 80GB HBM3", problem(2, 4, 1024), "c"},
        {kGpu, causal(problem(2, 4, 512)), "c"},  // whose kernel has no mask
    };
    const char* defaults[] = {"c"};
    const fa_tune::Table table({kernels, 3, entries, 4, defaults, 1, nullptr, 0});
    CHECK(config_of(table.find(problem(2, 4, 512))) == "a");
    CHECK(table.why(problem(2, 4, 512)) == "a: measured on b2_h4_kv4_q512_k512_d128_fp16_full");
    CHECK(config_of(table.find(problem(2, 4, 3000))) == "b");
    CHECK(says(table.why(problem(2, 4, 3000)), "nearest is b2_h4_kv4_q4096_k4096_d128_fp16_full"));
    // Equally near: the one that stands first.
    CHECK(config_of(table.find(problem(2, 4, 1448))) == "a");
    fa_tune_kernel* kernel = nullptr;
    const fa_tune_problem other = causal(problem());
    CHECK_FAILS(fa_tune_find(table.get(), &other, -1, &kernel), FA_TUNE_NOT_FOUND,
                "no kernel computes b2_h4_kv4_q512_k512_d128_fp16_causal on NVIDIA H200, sm_90; "
                "there is: fp16, d_head 128, full, ragged, compute_80; fp16, d_head 128, full, "
                "ragged, sm_90a");
}

void few_rows_and_many_are_apart() {
    Variant a = named("a", Variant::persistent()), b = named("b", Variant::persistent());
    Variant c = named("c", Variant::persistent());
    const fa_tune_kernel_info kernels[] = {a.info(), b.info(), c.info()};
    const fa_tune_problem few = problem(2, 4, 32), many = problem(2, 4, 33);
    const char* defaults[] = {"c"};
    const fa_tune_entry of_many[] = {{kGpu, many, "a"}}, of_few[] = {{kGpu, few, "b"}};
    const fa_tune::Table tuned_many({kernels, 3, of_many, 1, defaults, 1, nullptr, 0});
    const fa_tune::Table tuned_few({kernels, 3, of_few, 1, defaults, 1, nullptr, 0});
    CHECK(config_of(tuned_many.find(many)) == "a");
    CHECK(config_of(tuned_many.find(few)) == "c");
    CHECK(config_of(tuned_few.find(few)) == "b");
    CHECK(config_of(tuned_few.find(many)) == "c");
    fa_tune_problem grouped = problem(2, 4, 17);  // twice as many rows share a head
    grouped.kv_heads = 2;
    CHECK(config_of(tuned_few.find(grouped)) == "c");
    // Rather than nothing.
    const fa_tune::Table without_default({kernels, 3, of_few, 1, nullptr, 0, nullptr, 0});
    CHECK(config_of(without_default.find(many)) == "b");
}

void a_default_is_for_what_nobody_tuned() {
    Variant a = named("a", Variant::persistent()), b = named("b", Variant::persistent());
    a.plan.causal = 1;
    const fa_tune_kernel_info kernels[] = {a.info(), b.info()};
    const char* defaults[] = {"a", "b"};
    const fa_tune::Table table({kernels, 2, nullptr, 0, defaults, 2, nullptr, 0});
    CHECK(config_of(table.find(problem())) == "b");
    CHECK(config_of(table.find(causal(problem()))) == "a");
    CHECK(says(table.why(problem()), "b: the default"));
}

void a_default_for_few_rows_is_for_no_more() {
    std::vector<Variant> variants(4, named("many", Variant::persistent()));
    for (int i = 0; i < 3; ++i) {
        variants[i].config = "few " + std::to_string(64 >> i);
        variants[i].plan.decode_shape = 1;
        variants[i].launch.tile_rows = 64 >> i;
    }
    std::vector<fa_tune_kernel_info> kernels;
    std::vector<const char*> defaults;
    for (Variant& variant : variants) {
        kernels.push_back(variant.info());
        defaults.push_back(variant.config.c_str());
    }
    const fa_tune::Table table({kernels.data(), 4, nullptr, 0, defaults.data(), 4, nullptr, 0});
    const auto chosen = [&](int rows) { return config_of(table.find(problem(2, 4, rows))); };
    CHECK(chosen(1) == "few 16");
    CHECK(chosen(16) == "few 16");
    CHECK(chosen(17) == "few 32");
    CHECK(chosen(32) == "few 32");
    CHECK(chosen(33) == "many");
    const auto of_group = [&](int batch, int heads, int queries, int keys) {
        fa_tune_problem p = problem(batch, heads, queries);
        p.kv_heads = 1;
        p.seq_len_kv = keys;
        return config_of(table.find(p));
    };
    CHECK(of_group(900, 71, 16, 16) == "few 64");  // queries
    CHECK(of_group(900, 71, 17, 8192) == "many");
    CHECK(of_group(2, 64, 20, 80) == "few 64");  // rows in all, and four times as many keys
    CHECK(of_group(2, 64, 20, 79) == "many");
    CHECK(of_group(1, 122, 21, 8192) == "many");
    CHECK(of_group(1 << 30, 1 << 30, 1 << 30, 8192) == "many");
}

void sized_defaults_come_between_near_entries_and_defaults() {
    std::vector<Variant> variants;
    std::vector<fa_tune_kernel_info> kernels;
    for (const char* name : {"tuned", "short", "long", "wide", "cached", "later", "default"}) {
        variants.push_back(named(name, Variant::persistent()));
    }
    for (Variant& variant : variants) kernels.push_back(variant.info());
    const auto of = [](int queries, int keys, int cached = 0) {
        fa_tune_problem p = problem(2, 4, queries);
        p.seq_len_kv = keys;
        p.cached = cached;
        return p;
    };
    const fa_tune_entry entries[] = {{kGpu, of(1, 100), "tuned"}};
    const fa_tune_sized_default sized[] = {
        {90, of(16, 1000), "short"},     {90, of(16, 9000), "long"},   {90, of(32, 1000), "wide"},
        {90, of(16, 1000, 1), "cached"}, {100, of(16, 2000), "later"},
    };
    const char* defaults[] = {"default"};
    const fa_tune::Table table({kernels.data(), kernels.size(), entries, 1, defaults, 1, sized, 5});
    const auto chosen = [&](const fa_tune_problem& p) { return config_of(table.find(p)); };
    CHECK(chosen(of(1, 150)) == "tuned");
    CHECK(chosen(of(1, 250)) == "short");  // more than a doubling from what was tuned
    CHECK(chosen(of(16, 2000)) == "short");
    CHECK(chosen(of(1, 4000)) == "long");
    CHECK(chosen(of(17, 9000)) == "wide");  // however far: the others have fewer rows
    CHECK(chosen(of(33, 1000)) == "default");
    CHECK(chosen(of(2, 9000, 1)) == "cached");
    CHECK(says(table.why(of(1, 4000)), "the default of b2_h4_kv4_q16_k9000"));
}

void of_a_configs_kernels_the_one_that_fits_best() {
    // ragged, not ragged, with lse, causal, PTX: all of one config.
    std::vector<Variant> variants(5, named("a", Variant::persistent()));
    variants[1].plan.ragged = 0;
    variants[2].plan.lse = 1;
    variants[3].plan.causal = 1;
    variants[4].plan.ragged = 0;
    variants[4].plan.portability = FA_TUNE_PORTABILITY_LATER;
    std::vector<fa_tune_kernel_info> kernels;
    for (Variant& variant : variants) kernels.push_back(variant.info());
    const char* defaults[] = {"a"};
    const fa_tune::Table table(
        {kernels.data(), kernels.size(), nullptr, 0, defaults, 1, nullptr, 0});
    const auto plan = [&](const fa_tune_problem& p) {
        return *fa_tune_kernel_plan(table.find(p, 0, "a"));
    };
    CHECK(plan(problem(2, 4, 512)).ragged == 0);
    CHECK(plan(problem(2, 4, 512)).portability == FA_TUNE_PORTABILITY_EXACT);
    CHECK(plan(problem(2, 4, 500)).ragged == 1);
    CHECK(plan(with_lse(problem())).lse == 1);
    CHECK(plan(causal(problem())).causal == 1);
    fa_tune_kernel* kernel = nullptr;
    const fa_tune_problem both = with_lse(causal(problem()));
    CHECK_FAILS(fa_tune_find_config(table.get(), "a", &both, 0, &kernel), FA_TUNE_NOT_FOUND,
                "a has no kernel for b2_h4_kv4_q512_k512_d128_fp16_causal_lse on sm_90; it has:");
}

void a_config_that_is_not_there_is_named_with_what_there_is() {
    Variant a = named("sm90(a)", Variant::persistent()), b = named("sm80(b)", Variant::plain());
    const fa_tune_kernel_info kernels[] = {a.info(), b.info()};
    const fa_tune::Table table({kernels, 2, nullptr, 0, nullptr, 0, nullptr, 0});
    CHECK(config_of(table.find(problem(), 0, "sm80(b)")) == "sm80(b)");
    fa_tune_kernel* kernel = nullptr;
    const fa_tune_problem p = problem();
    CHECK_FAILS(fa_tune_find_config(table.get(), "sm90(x)", &p, 0, &kernel), FA_TUNE_NOT_FOUND,
                "there is no sm90(x); there is: sm80(b); sm90(a)");
    try {
        table.find(p, 0, "sm90(x)");
        CHECK(false);
    } catch (const fa_tune::Error& error) {
        CHECK(error.status() == FA_TUNE_NOT_FOUND);
        CHECK(says(error.what(), "sm90(x)"));
    }
}

void names_without_a_kernel_are_refused_when_the_table_is_made() {
    Variant a = named("a", Variant::persistent());
    const fa_tune_kernel_info kernels[] = {a.info()};
    const char* defaults[] = {"b"};
    fa_tune_table* table = nullptr;
    fa_tune_table_info info = {kernels, 1, nullptr, 0, defaults, 1, nullptr, 0};
    CHECK_REFUSED(fa_tune_table_create(&info, &table), "a default names b");
    const fa_tune_entry entries[] = {{kGpu, problem(), "c"}};
    info = {kernels, 1, entries, 1, nullptr, 0, nullptr, 0};
    CHECK_REFUSED(fa_tune_table_create(&info, &table), "an entry names c");
    const fa_tune_entry wrong[] = {{kGpu, problem(0), "a"}};
    info = {kernels, 1, wrong, 1, nullptr, 0, nullptr, 0};
    CHECK_REFUSED(fa_tune_table_create(&info, &table), "batch");
    const fa_tune_sized_default unnamed[] = {{90, problem(2, 4, 1), "d"}};
    info = {kernels, 1, nullptr, 0, nullptr, 0, unnamed, 1};
    CHECK_REFUSED(fa_tune_table_create(&info, &table), "a sized default names d");
    const fa_tune_sized_default of_many[] = {{90, problem(2, 4, 65), "a"}};
    info = {kernels, 1, nullptr, 0, nullptr, 0, of_many, 1};
    CHECK_REFUSED(fa_tune_table_create(&info, &table), "not of few queries");
}

void arrays_that_are_not_there_are_refused() {
    fa_tune_table* table = nullptr;
    fa_tune_table_info info{};
    for (auto count :
         {&fa_tune_table_info::kernel_count, &fa_tune_table_info::entry_count,
          &fa_tune_table_info::default_count, &fa_tune_table_info::sized_default_count}) {
        info = {};
        info.*count = 1;
        CHECK_REFUSED(fa_tune_table_create(&info, &table), "is NULL");
    }
    info = {};
    CHECK(fa_tune_table_create(&info, &table) == FA_TUNE_OK);
    fa_tune_table_destroy(table);
}

void a_table_prepares_what_runs_here() {
    stub_reset();
    Variant here = named("a", Variant::persistent()), not_here = named("b", Variant::plain());
    not_here.plan.portability = FA_TUNE_PORTABILITY_EXACT;
    const fa_tune_kernel_info kernels[] = {here.info(), not_here.info()};
    const char* defaults[] = {"b", "a"};
    const fa_tune::Table table({kernels, 2, nullptr, 0, defaults, 2, nullptr, 0});
    table.prepare(0);
    CHECK(stub_calls("cuLibraryLoadData") == 1);
    const fa_tune_problem p = problem();
    table.launch(p, tensors(p), 0, stub_stream(1));  // as captured launches need it
    CHECK(stub_launch_count() == 1);
}

void text_is_cut_to_its_room() {
    Variant a = named("a", Variant::persistent());
    const fa_tune_kernel_info kernels[] = {a.info()};
    const char* defaults[] = {"a"};
    const fa_tune::Table table({kernels, 1, nullptr, 0, defaults, 1, nullptr, 0});
    char text[4] = "xyz";
    const fa_tune_problem p = problem();
    CHECK(fa_tune_why(table.get(), &p, 0, text, sizeof text) == FA_TUNE_OK);
    CHECK(std::string(text) == "a: ");
}

// A mask that is aligned bottom-right hides nothing from it.
void one_query_runs_what_was_tuned_without_a_mask() {
    stub_reset();
    Variant full = named("full", Variant::persistent()), masked = named("masked", full);
    masked.plan.causal = 1;
    const fa_tune_kernel_info kernels[] = {full.info(), masked.info()};
    fa_tune_problem p = problem();
    p.seq_len_q = 1;
    const fa_tune_entry entries[] = {{kGpu, p, "full"}};
    const char* defaults[] = {"masked", "full"};
    const fa_tune::Table table({kernels, 2, entries, 1, defaults, 2, nullptr, 0});
    p.mask = FA_TUNE_MASK_CAUSAL_BR;
    CHECK(table.why(p) == "full: measured on b2_h4_kv4_q1_k512_d128_fp16_full");
    const fa_tune_tensors given = tensors(p);
    CHECK(fa_tune_launch(table.find(p), &p, &given, 0, nullptr) == FA_TUNE_OK);
    CHECK(config_of(table.find(p, 0, "masked")) == "masked");
    p.mask = FA_TUNE_MASK_CAUSAL;  // sees the first key alone
    CHECK(config_of(table.find(p)) == "masked");
    p.cached = 1;  // aligned with the end of each sequence
    CHECK(config_of(table.find(p)) == "full");
    const fa_tune::Table without({kernels + 1, 1, nullptr, 0, defaults, 1, nullptr, 0});
    CHECK(config_of(without.find(p)) == "masked");
    p.seq_len_q = 2;
    CHECK(config_of(table.find(p)) == "masked");
}

}  // namespace

int main() {
    exact_then_nearest_then_default();
    few_rows_and_many_are_apart();
    sized_defaults_come_between_near_entries_and_defaults();
    a_default_is_for_what_nobody_tuned();
    a_default_for_few_rows_is_for_no_more();
    of_a_configs_kernels_the_one_that_fits_best();
    a_config_that_is_not_there_is_named_with_what_there_is();
    names_without_a_kernel_are_refused_when_the_table_is_made();
    arrays_that_are_not_there_are_refused();
    a_table_prepares_what_runs_here();
    text_is_cut_to_its_room();
    one_query_runs_what_was_tuned_without_a_mask();
}
