#include "cuda/arch/sm90/emit_mma.h"

#include <algorithm>

#include "plan/arch/sm90/sm90.h"
#include "support/text.h"

namespace flexc::cuda {

namespace {

constexpr int kSummed = 16;       // rows or columns that an instruction sums over
constexpr int kPanelColumns = 64; // of shared memory, see wgmma.cuh
constexpr int kPanelSteps = kPanelColumns / kSummed;
constexpr int kUnitBytes = 16;
constexpr int kRowUnits = 8;  // in a panel
constexpr int kStepUnits = 2; // of a row
// Columns of the output in one instruction: ptxas walks along all accumulators of an instruction
// for each register that lives beside them, which took an eighth of a compile with 256 columns.
constexpr int kWidest = 192, kTwoPanels = 2 * kPanelColumns;

std::string operands(int first, int count) {
    std::string text;
    for (int i = first; i < first + count; ++i)
        text += formatted("{}%{}", i == first ? "" : ", ", i);
    return text;
}

// One wgmma instruction, for `columns` columns of the accumulator from column `first` on. `left`:
// registers of the left operand, or its descriptor. `dtype` is the type of both operands;
// accumulators are always f32.
std::string product(DType dtype, int first, int columns, std::string_view left,
                    std::string_view adds, std::string_view transposed) {
    const std::string_view type = dtype == DType::f16 ? "f16" : "bf16";
    return formatted("wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{} {{{}}}, {}, b, {}, 1, 1, "
                     "{};\\n\"\n        \"",
                     columns, type, type, operands(first / 2, columns / 2), left, adds, transposed);
}

// All instructions of a matrix product as one asm statement. Each statement that names so many
// registers takes the compiler long, and code between two of them could touch the registers in use.
std::string statement(std::string_view declarations, std::string_view text, int accumulators,
                      std::string_view inputs) {
    std::string outputs;
    for (int i = 0; i < accumulators; ++i)
        outputs += formatted("{}\"+f\"(d[{}])", i == 0 ? "" : ", ", i);
    return formatted("    asm volatile(\n        \"{{\\n{}wgmma.fence.sync.aligned;\\n\"\n"
                     "        \"{}wgmma.commit_group.sync.aligned;\\n}}\"\n"
                     "        : {}\n        : {}\n        : \"memory\");\n",
                     declarations, text, outputs, inputs);
}

int steps_of(int columns) { return (columns + kSummed - 1) / kSummed; }

// Offset of a step's columns in a swizzled operand, in descriptor units; its panels have `rows`
// rows.
int units_before(int step, int rows) {
    return step / kPanelSteps * rows * kRowUnits + step % kPanelSteps * kStepUnits;
}

std::string mma_qk(DType dtype, int head_dim, const plan::KernelConfig& config) {
    const int steps = steps_of(head_dim), from = config.block.key_tile / 2; // of the inputs
    const int queries = from, keys = from + 1, adds = from + 2;
    const int query_addends = from + 3, key_addends = from + 4;
    std::string text;
    std::string inputs = "\"r\"(queries), \"r\"(keys), \"n\"(static_cast<int>(kAdds))";
    const auto multiply = [&](DType type, int query_units, int key_units, bool is_first) {
        text += formatted("add.u32 x, %{}, {};\\nmov.b64 a, {{x, 0x40000040}};\\n"
                          "add.u32 y, %{}, {};\\nmov.b64 b, {{y, 0x40000040}};\\n",
                          queries, query_units, keys, key_units) +
                product(type, 0, config.block.key_tile, "a", is_first ? "p" : "1", "0, 0");
    };
    for (int step = 0; step < steps; ++step)
        multiply(dtype, units_before(step, config.block.query_tile),
                 units_before(step, config.block.key_tile), step == 0);
    // Columns of both parts of addends by kinds, or a step for each, which has the same keys.
    const ::sm90::ForwardSizes& sizes = plan::sm90::forward_of(config)->sizes;
    const ::sm90::ForwardLayout symbols = ::sm90::forward_layout(sizes);
    for (int step = 0; step < steps_of(2 * sizes.kind_columns); ++step)
        multiply(DType::bf16, symbols.kind_queries / kUnitBytes + step * kStepUnits,
                 symbols.kind_keys / kUnitBytes, false);
    // 16 bytes for each query or key, and for each of eight of the others that stand for all,
    // without a swizzle. Both halves of the columns that are summed are the same memory.
    if (sizes.has_addend_step()) {
        constexpr int kNext = 8 * ::sm90::ForwardLayout::kAddendBytes / kUnitBytes, kSame = 0;
        const int of_queries = sizes.multiplies_index_2d_rows ? kNext : kSame;
        const int of_keys = sizes.multiplies_index_2d_rows ? kSame : kNext;
        inputs += ", \"r\"(query_addends), \"r\"(key_addends)";
        text += formatted("mov.b64 a, {{%{}, {}}};\\nmov.b64 b, {{%{}, {}}};\\n", query_addends,
                          of_queries, key_addends, of_keys) +
                product(DType::bf16, 0, config.block.key_tile, "a", "1", "0, 0");
    }
    // The same of products of rows and keys. The halves of a step's columns are two of these.
    constexpr int kGroup = 8 * ::sm90::ForwardLayout::kAddendBytes / kUnitBytes;
    if (sizes.row_key_products != 0) inputs += ", \"r\"(query_addends), \"r\"(key_addends)";
    for (int step = 0; step < sizes.key_operands() / 2; ++step)
        text += formatted("add.u32 x, %{0}, {1};\\nmov.b64 a, {{x, {4}}};\\n"
                          "add.u32 y, %{2}, {3};\\nmov.b64 b, {{y, {4}}};\\n",
                          query_addends, 2 * step * ::sm90::ForwardLayout::kOperandRows,
                          key_addends, 2 * step * config.block.key_tile, kGroup) +
                product(DType::bf16, 0, config.block.key_tile, "a", "1", "0, 0");
    return "template <bool kAdds>\n" +
           formatted("__device__ inline void mma_qk(float (&d)[{}], unsigned queries, "
                     "unsigned keys, unsigned query_addends, unsigned key_addends) {{\n",
                     from) +
           statement(formatted(".reg .b32 x, y;\\n.reg .b64 a, b;\\n.reg .pred p;\\n"
                               "setp.ne.b32 p, %{}, 0;\\n",
                               adds),
                     text, from, inputs) +
           "}\n";
}

std::string mma_pv(DType dtype, int columns, int keys) {
    const int steps = steps_of(keys), from = columns / 2, values = from + 4 * steps;
    const int at_once = columns > kWidest ? kTwoPanels : columns;
    std::string text, inputs;
    for (int first = 0; first < columns; first += at_once)
        for (int step = 0; step < steps; ++step)
            text += formatted("add.u32 y, %{}, {};\\nmov.b64 b, {{y, 0x40000040}};\\n", values,
                              (first / kPanelColumns * keys + step * kSummed) * kRowUnits) +
                    product(dtype, first, std::min(at_once, columns - first),
                            "{" + operands(from + 4 * step, 4) + "}", "1", "1");
    for (int step = 0; step < steps; ++step)
        for (int i = 0; i < 4; ++i)
            inputs += formatted("\"r\"(p[{}][{}]), ", step, i);
    return formatted("__device__ inline void mma_pv(float (&d)[{}], const unsigned "
                     "(&p)[{}][4], unsigned values) {{\n",
                     columns / 2, steps) +
           statement(".reg .b32 y;\\n.reg .b64 b;\\n", text, columns / 2,
                     inputs + "\"r\"(values)") +
           "}\n";
}

} // namespace

std::string emit_mma(const plan::KernelConfig& config, const EmitOptions& options) {
    const int columns = steps_of(options.head_dim_v) * kSummed;
    return mma_qk(options.dtype, options.head_dim, config) +
           mma_pv(options.dtype, columns, config.block.key_tile) + "\n";
}

} // namespace flexc::cuda
