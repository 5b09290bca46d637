// On the host, where a launch begins once the one in front of it is done, but does not find what
// that has left before it waits: kernels/ptx/griddepcontrol.cuh.
#pragma once

namespace fa_tune::ptx {

inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() { emulator::await_earlier(); }

}  // namespace fa_tune::ptx
