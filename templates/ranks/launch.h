// Launch parameters of the kernels of ranks.cu: threads stride over elements, or warps over rows.
#pragma once

namespace ranks {

constexpr int kWarps = 8, kThreads = 32 * kWarps;

} // namespace ranks
