// The kernels that were exported with this library, and for which problems they were chosen.
//
//     const fa_tune_table* table;
//     fa_tune_kernel* kernel;
//     fa_tune_exported(&table);
//     fa_tune_find(table, &problem, device, &kernel);
//     fa_tune_workspace_bytes(kernel, &problem, device, &bytes);  // of tensors.workspace, mostly 0
//     fa_tune_launch(kernel, &problem, &tensors, device, stream);
#pragma once

#include "export.h"  // which calls fa_tune_exported by a name of this export
#include "fa_tune.h"

#ifdef __cplusplus
extern "C" {
#endif

// The library's own table, made by the first call; it stays until the program ends.  It needs no
// driver.
FA_TUNE_API fa_tune_status fa_tune_exported(const fa_tune_table** table);

#ifdef __cplusplus
}
#endif
