// What forward and backward functions share: the tile's fields, the loop over rows and the loop
// over column values, loop metadata, and the choice between contiguous and strided code.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/emit_function.h"
#include "cpu/emit_values.h"

namespace flexc::cpu {

// A function has up to three vector loops. Their memory accesses are independent between
// iterations, which LLVM is told by an access group for each.
enum class VectorLoop : int { columns, elements, probabilities };

class LoopMetadata {
  public:
    explicit LoopMetadata(int first) : first_(first) {}
    std::string group(VectorLoop loop) const;  // "!12"
    std::string access(VectorLoop loop) const; // ", !llvm.access.group !12"
    std::string latch(VectorLoop loop) const;  // ", !llvm.loop !15"
    std::string definitions() const;

  private:
    int first_;
};

// Body of a function over all rows. `row` runs once a row: it starts in block %row_loop, where
// %row, %row64 and %row_offset (in elements of a tile matrix) are defined, and its text ends inside
// the block %row_end, without a terminator.
std::string frame(std::string_view name, std::string_view linkage, const Values& values,
                  const LoopMetadata& metadata, std::string_view row);

// Emits `name` once, or, where reads may be contiguous in kv, twice and a choice at run time.
using Body = std::function<FunctionText(std::string_view name, std::string_view linkage, bool dense,
                                        int first_metadata, std::vector<int>& stride_slots)>;
FunctionText versions(const FunctionRequest& request, const Body& body);

// One line that loads the tile's fields under their names; for functions without a frame too.
std::string load_fields();

// Adds the flag of reads outside their buffer to the end of a row, if %outside_next is not 0.
std::string report_outside(std::string_view pointer);

} // namespace flexc::cpu
