// wgmma: issued by lanes, done for a warp, when a schedule wants or a wait does.  See machine.h.
#include <cstring>

#include "element.h"
#include "machine.h"

namespace emulator {

namespace {

// Where the element at byte `offset` of a 128-byte-swizzled operand lies.
std::uint16_t operand(const Cta& cta, unsigned address) {
    const unsigned swizzled = address ^ (address >> 7 & 7) << 4;
    if (swizzled + 2 > cta.fenced.size()) fail("wgmma beyond the shared memory");
    std::uint16_t value;
    std::memcpy(&value, cta.fenced.data() + swizzled, 2);
    return value;
}

struct Descriptor {
    unsigned start, leading, stride;

    explicit Descriptor(std::uint64_t bits)
        : start((bits & 0x3fff) << 4),
          leading((bits >> 16 & 0x3fff) << 4),
          stride((bits >> 32 & 0x3fff) << 4) {
        if (bits >> 62 != 1) fail("a wgmma operand without 128-byte swizzle");
    }
    unsigned k_major(unsigned row, unsigned k) const {
        return start + row / 8 * stride + row % 8 * 128 + 2 * k;
    }
    unsigned n_major(unsigned k, unsigned n) const {
        return start + n / 64 * leading + k / 8 * stride + k % 8 * 128 + n % 64 * 2;
    }
};

void multiply(const Warp& warp, const Product& product) {
    const Cta& cta = *warp.cta;
    const unsigned first_row = (&warp - cta.warps.data()) % 4 * 16;
    constexpr int kRows = 16, kDepth = 16;
    float a[kRows][kDepth];
    const Descriptor b(product.b);
    if (product.a_in_registers) {
        for (int lane = 0; lane < kLanes; ++lane) {
            for (int i = 0; i < 4; ++i) {
                const unsigned packed = product.a_registers[lane][i];
                float* const to = &a[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8];
                to[0] = to_float(packed & 0xffff, product.bf16);
                to[1] = to_float(packed >> 16, product.bf16);
            }
        }
    } else {
        const Descriptor of_a(product.a);
        for (int row = 0; row < kRows; ++row) {
            for (int k = 0; k < kDepth; ++k) {
                a[row][k] = to_float(operand(cta, of_a.k_major(first_row + row, k)), product.bf16);
            }
        }
    }
    for (int n = 0; n < product.n; ++n) {
        float column[kDepth];
        for (int k = 0; k < kDepth; ++k) {
            column[k] = to_float(operand(cta, product.n_major ? b.n_major(k, n) : b.k_major(n, k)),
                                 product.bf16);
        }
        for (int row = 0; row < kRows; ++row) {
            float sum = 0;
            for (int k = 0; k < kDepth; ++k) sum += a[row][k] * column[k];
            const int lane = row % 8 * 4 + n % 8 / 2;
            float& d = product.d[lane][n / 8 * 4 + row / 8 * 2 + n % 2];
            d = product.accumulate ? d + sum : sum;
        }
    }
}

void multiply_oldest(Warp& warp) {
    multiply(warp, warp.products.front());
    warp.products.pop_front();
    ++warp.n_done;
}

}  // namespace

void issue(const Product& mine) {
    Warp& warp = *current->warp;
    const int lane = current->lane;
    const std::size_t number = warp.issued[lane]++;
    if (number - warp.n_done >= warp.products.size()) warp.products.push_back(mine);
    Product& product = warp.products[number - warp.n_done];
    if (!product.same_instruction(mine)) fail("lanes of a warp issue different wgmma");
    auto& of_group = warp.cta->products[current->index.x / 128];
    if (number == of_group.size()) of_group.push_back(mine);
    if (!of_group[number].same_instruction(mine)) {
        fail("warps of a warpgroup issue different wgmma");
    }
    product.d[lane] = mine.d[0];
    product.a_registers[lane] = mine.a_registers[0];
    if (++product.issued == kLanes && early()) {
        while (warp.n_done <= number) multiply_oldest(warp);
    }
}

void close_group() {
    Warp& warp = *current->warp;
    warp.closed[current->lane].push_back(warp.issued[current->lane]);
}

void wait_for_products(unsigned pending) {
    meet(
        "wgmma.wait_group",
        [](Warp& warp) {
            const std::uint64_t allowed = warp.given[0][0];
            const auto& closed = warp.closed[0];
            for (int lane = 1; lane < kLanes; ++lane) {
                if (warp.given[lane][0] != allowed || warp.closed[lane] != closed) {
                    fail("lanes of a warp wait for different groups of wgmma");
                }
            }
            if (closed.size() <= allowed) return;
            const std::size_t end = closed[closed.size() - 1 - allowed];
            while (warp.n_done < end) multiply_oldest(warp);
        },
        pending);
}

}  // namespace emulator
