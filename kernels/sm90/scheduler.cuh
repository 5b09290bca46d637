// Which tiles a CTA works on, in which order.
//
// Tiles are numbered section by section; a section is section_heads neighbouring heads, whose
// keys and values are meant to stay in L2 together:
//
//     linear          heads one after another, row blocks ascending (section_heads = 1)
//     longest first   row blocks descending, all heads of the section for each:
//                     with a causal mask the last rows see the most keys
//
// single: one tile per CTA, handed out by the hardware.  static: CTA c of G takes tiles
// c, c + G, c + 2G, ...
#pragma once

#include "sm90/config.cuh"
#include "sm90/params.cuh"

struct Tile {
    int number;
    int row_block;
    int head;  // of all heads of all batch elements
};

template <Sm90Config CFG>
struct Scheduler {
    const ForwardParams& p;

    __device__ __forceinline__ Tile first() const { return decode(blockIdx.x); }

    __device__ __forceinline__ bool valid(const Tile& tile) const {
        return tile.number < p.row_blocks * p.heads_in_all;
    }

    __device__ __forceinline__ Tile next(const Tile& tile) const {
        if constexpr (CFG.scheduler == 0) return Tile{0x7fffffff, 0, 0};
        return decode(tile.number + gridDim.x);
    }

    __device__ __forceinline__ Tile decode(int number) const {
        if constexpr (CFG.order == 0) {
            const int head = number / p.row_blocks;
            return Tile{number, number - head * p.row_blocks, head};
        } else {
            const int section_tiles = p.section_heads * p.row_blocks;
            const int section = number / section_tiles;
            const int in_section = number - section * section_tiles;
            const int first_head = section * p.section_heads;
            const int heads = min(p.section_heads, p.heads_in_all - first_head);
            const int row = in_section / heads;
            return Tile{number, p.row_blocks - 1 - row, first_head + in_section - row * heads};
        }
    }
};

// Key blocks [0, end) of a tile are visited, from the last one down.  A tile whose rows see no
// key visits block 0, all masked: every tile takes the same path.
template <Sm90Config CFG, WorkloadTraits TRAITS>
__device__ __forceinline__ int key_blocks(const ForwardParams& p, const Tile& tile) {
    int keys = p.seq_len_kv;
    if constexpr (TRAITS.causal) {
        const int last_row = min((tile.row_block + 1) * CFG.B_r, p.seq_len_q) - 1;
        keys = max(1, min(keys, last_row + p.diagonal + 1));
    }
    return (keys + CFG.B_c - 1) / CFG.B_c;
}
