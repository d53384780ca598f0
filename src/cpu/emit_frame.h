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

// Text of a function over all rows. `row` is the text of one row: it starts in block %row_ready,
// where %row, %row64 and %row_offset (in elements of a tile matrix) are defined, and ends inside
// the block %row_end, without a terminator. `after` follows all rows, from block %exit on.
std::string frame(std::string_view name, std::string_view linkage, const Values& values,
                  const LoopMetadata& metadata, std::string_view row, std::string_view after = "");

// Emits `name` once; or, if reads may be contiguous in kv, twice, with a choice at run time.
using Body = std::function<FunctionText(std::string_view name, std::string_view linkage, bool dense,
                                        int first_metadata, std::vector<int>& stride_slots)>;
FunctionText versions(const FunctionRequest& request, const Body& body);

inline constexpr std::string_view kLog2E = "0x3FF7154760000000";
inline constexpr std::string_view kMinusInfinity = "0xFFF0000000000000";

// Pieces of both functions that depend on whether reads outside buffers are reported.
struct Outside {
    std::string phi, step, end;
};
Outside outside_pieces(const passes::Mod& mod, Values& values);

// The end of each element's text.
inline constexpr std::string_view kElementStep =
    "  %j_element_next = add nuw nsw i32 %j_element, 1\n"
    "  %elements_done = icmp eq i32 %j_element_next, %columns\n";

// The modified score of one element and whether it is visible, under %modified and %visible.
std::string modified_score(const passes::Mod& mod, const Values& values, bool masked);

// One line that loads the tile's fields under their names; for functions without a frame too.
std::string load_fields();

} // namespace flexc::cpu
