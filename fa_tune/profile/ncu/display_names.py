"""The identifiers behind the display names of ncu's details page.

A details page shows `Duration` where the raw page says `gpu__time_duration.sum`, and the same
display name can stand in two sections for two metrics, so the key is (section, name).  Source:
the section files shipped with Nsight Compute; the launch facts were compared with a raw page
of the same kernels.
"""

from __future__ import annotations

_PEAK_ACTIVE = ".avg.pct_of_peak_sustained_active"
_PEAK_ELAPSED = ".avg.pct_of_peak_sustained_elapsed"

_SPEED_OF_LIGHT = {
    "Duration": "gpu__time_duration.sum",
    "Elapsed Cycles": "gpc__cycles_elapsed.max",
    "SM Frequency": "sm__cycles_elapsed.avg.per_second",
    "DRAM Frequency": "dram__cycles_elapsed.avg.per_second",
    "Memory Frequency": "dram__cycles_elapsed.avg.per_second",  # its name until 2020
    "SM Active Cycles": "sm__cycles_active.avg",
    "Compute (SM) Throughput": "sm__throughput" + _PEAK_ELAPSED,
    "Memory Throughput": "gpu__compute_memory_throughput" + _PEAK_ELAPSED,
    "DRAM Throughput": "gpu__dram_throughput" + _PEAK_ELAPSED,
    "L1/TEX Cache Throughput": "l1tex__throughput" + _PEAK_ACTIVE,
    "L2 Cache Throughput": "lts__throughput" + _PEAK_ELAPSED,
}

_SECTIONS: dict[str, dict[str, str]] = {
    "GPU Speed Of Light Throughput": _SPEED_OF_LIGHT,
    "GPU Speed Of Light": _SPEED_OF_LIGHT,  # its name until 2020
    "Compute Workload Analysis": {
        "Executed Ipc Active": "sm__inst_executed.avg.per_cycle_active",
        "Executed Ipc Elapsed": "sm__inst_executed.avg.per_cycle_elapsed",
        "Issue Slots Busy": "sm__inst_issued" + _PEAK_ACTIVE,
        "Issued Ipc Active": "sm__inst_issued.avg.per_cycle_active",
        "SM Busy": "sm__instruction_throughput" + _PEAK_ACTIVE,
    },
    "Memory Workload Analysis": {
        "Memory Throughput": "dram__bytes.sum.per_second",
        "Mem Busy": "gpu__compute_memory_access_throughput" + _PEAK_ELAPSED,
        "Max Bandwidth": "gpu__compute_memory_request_throughput" + _PEAK_ELAPSED,
        "Mem Pipes Busy": "sm__memory_throughput" + _PEAK_ELAPSED,
        "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
        "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
        "L2 Persisting Size": "launch__persisting_l2_cache_size",
        "Local Memory Spilling Requests": "derived__local_spilling_requests",
        "Local Memory Spilling Request Overhead": "derived__local_spilling_requests_pct",
    },
    "Scheduler Statistics": {
        "One or More Eligible": "smsp__issue_active" + _PEAK_ACTIVE,
        "No Eligible": "smsp__issue_inst0" + _PEAK_ACTIVE,
        "Issued Warp Per Scheduler": "smsp__issue_active.avg.per_cycle_active",
        "Active Warps Per Scheduler": "smsp__warps_active.avg.per_cycle_active",
        "Eligible Warps Per Scheduler": "smsp__warps_eligible.avg.per_cycle_active",
    },
    "Warp State Statistics": {
        "Warp Cycles Per Issued Instruction": "smsp__average_warp_latency_per_inst_issued.ratio",
        "Warp Cycles Per Executed Instruction": (
            "smsp__average_warps_active_per_inst_executed.ratio"
        ),
        "Avg. Active Threads Per Warp": "smsp__thread_inst_executed_per_inst_executed.ratio",
        "Avg. Not Predicated Off Threads Per Warp": (
            "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio"
        ),
    },
    "Instruction Statistics": {
        "Executed Instructions": "smsp__inst_executed.sum",
        "Avg. Executed Instructions Per Scheduler": "smsp__inst_executed.avg",
        "Issued Instructions": "smsp__inst_issued.sum",
        "Avg. Issued Instructions Per Scheduler": "smsp__inst_issued.avg",
    },
    "Launch Statistics": {
        "Block Size": "launch__block_size",
        "Grid Size": "launch__grid_size",
        "Threads": "launch__thread_count",
        "Registers Per Thread": "launch__registers_per_thread",
        "Static Shared Memory Per Block": "launch__shared_mem_per_block_static",
        "Dynamic Shared Memory Per Block": "launch__shared_mem_per_block_dynamic",
        "Driver Shared Memory Per Block": "launch__shared_mem_per_block_driver",
        "Shared Memory Configuration Size": "launch__shared_mem_config_size",
        "Stack Size": "launch__stack_size",
        "Waves Per SM": "launch__waves_per_multiprocessor",
        "# SMs": "launch__sm_count",
        "# TPCs": "launch__tpc_count",
        "Enabled TPC IDs": "launch__tpc_enabled",
        "Cluster Size": "launch__cluster_size",
        "Cluster Scheduling Policy": "launch__cluster_scheduling_policy",
        "Function Cache Configuration": "launch__func_cache_config",
        "Uses Green Context": "launch__uses_green_context",
    },
    "Occupancy": {
        "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
        "Theoretical Active Warps per SM": "sm__maximum_warps_avg_per_active_cycle",
        "Achieved Occupancy": "sm__warps_active" + _PEAK_ACTIVE,
        "Achieved Active Warps Per SM": "sm__warps_active.avg.per_cycle_active",
        "Block Limit SM": "launch__occupancy_limit_blocks",
        "Block Limit Registers": "launch__occupancy_limit_registers",
        "Block Limit Shared Mem": "launch__occupancy_limit_shared_mem",
        "Block Limit Warps": "launch__occupancy_limit_warps",
        "Block Limit Barriers": "launch__occupancy_limit_barriers",
        "Max Active Clusters": "launch__cluster_max_active",
        "Max Cluster Size": "launch__cluster_max_potential_size",
        "Cluster Occupancy": "launch__occupancy_cluster_pct",
        "Overall GPU Occupancy": "launch__occupancy_cluster_gpu_pct",
    },
    "GPU and Memory Workload Distribution": {
        f"{rollup} {unit_name} {what} Cycles": f"{unit}__cycles_{what.lower()}.{suffix}"
        for unit_name, unit in (
            ("DRAM", "dram"),
            ("L1", "l1tex"),
            ("L2", "lts"),
            ("SM", "sm"),
            ("SMSP", "smsp"),
        )
        for rollup, what, suffix in (("Average", "Active", "avg"), ("Total", "Elapsed", "sum"))
    },
}

IDENTIFIERS: dict[tuple[str, str], str] = {
    (section, name): identifier
    for section, names in _SECTIONS.items()
    for name, identifier in names.items()
}
