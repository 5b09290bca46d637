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
    int pingpong;
    bool overlap;
    int pin;
    int rescale;
    int scheduler;
    int order;
    bool carry;
};
