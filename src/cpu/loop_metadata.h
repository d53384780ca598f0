// Metadata of loops over columns, for LLVM.
#pragma once

#include <string>

namespace flexc::cpu {

// A function has up to four kinds of vector loops. Their memory accesses are independent between
// iterations, which LLVM is told by an access group for each.
enum class VectorLoop : int { columns, elements, probabilities, terms };

class LoopMetadata {
  public:
    explicit LoopMetadata(int first) : first_(first) {}
    std::string group(VectorLoop loop) const;  // "!12"
    std::string access(VectorLoop loop) const; // ", !llvm.access.group !12"
    std::string latch(VectorLoop loop) const;  // ", !llvm.loop !15"
    // For a loop around vector loops: unrolling a few of them would take seconds to compile.
    std::string outer_latch() const;
    std::string definitions() const;

  private:
    int first_;
};

} // namespace flexc::cpu
