#pragma once
enum class DType : int { FP16 = 5, BF16 = 15 };
struct Sm90Config {
    DType dtype;
    int d_head;
    int B_r;
    int B_c;
    int consumers;
    int stages;
    int q_stages;
    bool pingpong;
    bool overlap;
    bool pin;
    int rescale;
    int scheduler;
    int order;
    bool carry;
};
