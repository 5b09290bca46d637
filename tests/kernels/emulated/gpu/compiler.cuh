// On the host: kernels/compiler.cuh.  Nothing is moved, and the stores never happen.
#pragma once

namespace fa_tune {

inline void keep_register(float&) {}
inline void keep_register(unsigned&) {}

template <class T, int kCount>
inline void keep_registers(T (&)[kCount]) {}

inline void force_exponentials_before_here(float, unsigned) {}

inline void force_before_here(float, const unsigned (&)[4], const unsigned (&)[4],
                              const unsigned (&)[4], const unsigned (&)[4], unsigned) {}

}  // namespace fa_tune
