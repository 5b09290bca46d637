// On the host, where a launch begins once the one in front of it is done:
// kernels/ptx/griddepcontrol.cuh.
#pragma once

namespace fa_tune::ptx {

inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}

}  // namespace fa_tune::ptx
