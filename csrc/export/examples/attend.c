/* attend.cpp in C.
 *
 *     attend_c b2_h4_kv2_q300_k413_d128_fp16_causal_br */
#include <fa_tune/exported.h>

#include "device.h"
#include "reference.h"

enum { Q, K, V, O, TENSORS }; /* as their roles, FA_TUNE_TENSOR_Q and so on */

int main(int argc, char** argv) {
    fa_tune_problem p;
    fa_tune_tensors tensors = {0};
    device_address addresses[TENSORS], workspace;
    size_t workspace_bytes = 0;
    uint16_t* elements[TENSORS];
    size_t bytes[TENSORS];
    const fa_tune_table* table = NULL;
    fa_tune_kernel* kernel = NULL;
    fa_tune_status status;
    double error = 0;

    if (argc < 2 || !parse_problem(argv[1], &p) || p.operation != FA_TUNE_OPERATION_FORWARD) {
        fprintf(stderr, "usage: attend_c b2_h4_kv2_q300_k413_d128_fp16_causal_br\n");
        return 2;
    }
    status = fa_tune_init();
    if (status == FA_TUNE_OK) status = fa_tune_exported(&table);
    if (status == FA_TUNE_OK) status = fa_tune_find(table, &p, 0, &kernel);
    if (status != FA_TUNE_OK) {
        fprintf(stderr, "attend_c: %s\n", fa_tune_last_error());
        return status == FA_TUNE_NO_DRIVER ? NOTHING_TO_RUN_ON : 1;
    }

    use_device(0);
    for (int i = 0; i < TENSORS; ++i) {
        const int64_t seq_len = i == Q || i == O ? p.seq_len_q : p.seq_len_kv;
        const int64_t heads = i == Q || i == O ? p.heads : p.kv_heads;
        const int64_t columns = i == Q || i == K ? p.d_head : values_of(&p);
        const size_t count = (size_t)(p.batch * seq_len * heads * columns);
        bytes[i] = count * sizeof(uint16_t);
        elements[i] = (uint16_t*)calloc(count, sizeof(uint16_t));
        if (elements[i] == NULL) return 1;
        if (i != O) fill(elements[i], count, p.dtype, (uint32_t)i + 1);
        addresses[i] = device_allocate(bytes[i]);
        copy_to_device(addresses[i], elements[i], bytes[i]);
        tensors.of[i] = contiguous(addresses[i], seq_len, heads, columns);
    }
    status = fa_tune_workspace_bytes(kernel, &p, 0, &workspace_bytes);
    workspace = device_allocate(workspace_bytes + 1); /* mostly none is needed */
    tensors.workspace = (void*)(uintptr_t)workspace;
    if (status == FA_TUNE_OK) status = fa_tune_launch(kernel, &p, &tensors, 0, NULL);
    if (status != FA_TUNE_OK) {
        fprintf(stderr, "attend_c: %s\n", fa_tune_last_error());
        return 1;
    }
    copy_from_device(elements[O], addresses[O], bytes[O]);
    error = largest_error(&p, elements[Q], elements[K], elements[V], elements[O]);
    printf("%s\nlargest error %.2e, allowed %.2e\n", fa_tune_kernel_config(kernel), error,
           allowed_error(p.dtype));
    device_free(workspace);
    for (int i = 0; i < TENSORS; ++i) {
        device_free(addresses[i]);
        free(elements[i]);
    }
    return error <= allowed_error(p.dtype) ? 0 : 1;
}
