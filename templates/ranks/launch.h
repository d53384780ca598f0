// How the kernels of ranks.cu are launched: their threads stride over elements, or warps over rows.
#pragma once

namespace ranks {

constexpr int kWarps = 8, kThreads = 32 * kWarps;

} // namespace ranks
