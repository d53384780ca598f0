// Treats denormal numbers as zero for the life of the object. Products of tiny probabilities would
// otherwise cost hundreds of cycles each; they are far below what sums in f32 can hold.
#pragma once

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace flexc::cpu {

class FlushDenormals {
  public:
#if defined(__SSE__)
    FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushAndZero); }
    ~FlushDenormals() { _mm_setcsr(before_); }
#else
    FlushDenormals() {}
    ~FlushDenormals() {}
#endif
    FlushDenormals(const FlushDenormals&) = delete;
    FlushDenormals& operator=(const FlushDenormals&) = delete;

  private:
#if defined(__SSE__)
    static constexpr unsigned kFlushAndZero = 0x8040;
    unsigned before_;
#endif
};

} // namespace flexc::cpu
