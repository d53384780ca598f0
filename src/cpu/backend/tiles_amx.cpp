// Products of bf16 numbers by the matrix unit (AMX).
#include "cpu/backend/amx.h"
#include "cpu/backend/part_products.h"
#include "cpu/backend/part_tiles.h"

namespace flexc::cpu::amx {

#if defined(__x86_64__) && defined(__linux__)

namespace {

// out[rows][columns] = left right, by squares of 32: four tiles of sums, two of each side. Products
// of parts are summed whose numbers add up to kMostOrder at most.
template <int kLeftParts, int kRightParts, int kMostOrder = kLeftParts + kRightParts>
FLEXC_AMX void multiply_parts(const parts::Product& product) {
    const auto& [rows, columns, inner, left, right, out, out_stride, accumulate] = product;
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile)
        config.set(tile, kTileRows, kLineBytes);
    load_config(config);
    const std::int64_t left_bytes = left.stride * 2, out_bytes = out_stride * 4;
    for (std::int64_t column = 0; column < columns; column += parts::kTileUnit)
        for (std::int64_t row = 0; row < rows; row += parts::kTileUnit) {
            float* const to = out + row * out_stride + column;
            float* const below = to + kTileRows * out_stride;
            compiler_barrier();
            if (accumulate) {
                _tile_loadd(0, to, out_bytes);
                _tile_loadd(1, to + kTileColumns, out_bytes);
                _tile_loadd(2, below, out_bytes);
                _tile_loadd(3, below + kTileColumns, out_bytes);
            } else {
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
            }
            const std::uint16_t* from_left = left.data + row * left.stride;
            const std::uint16_t* from_right = right.data + column / kTileColumns * right.stride;
            for (std::int64_t i = 0; i < inner;
                 i += parts::kTileUnit, from_left += left.inner, from_right += right.inner)
                for (int r = 0; r < kRightParts; ++r) {
                    _tile_loadd(6, from_right + r * right.part, kLineBytes);
                    _tile_loadd(7, from_right + r * right.part + right.stride, kLineBytes);
                    for (int l = 0; l < kLeftParts && l + r <= kMostOrder; ++l) {
                        const std::uint16_t* const part = from_left + l * left.part;
                        _tile_loadd(4, part, left_bytes);
                        _tile_dpbf16ps(0, 4, 6);
                        _tile_dpbf16ps(1, 4, 7);
                        _tile_loadd(5, part + kTileRows * left.stride, left_bytes);
                        _tile_dpbf16ps(2, 5, 6);
                        _tile_dpbf16ps(3, 5, 7);
                    }
                }
            _tile_stored(0, to, out_bytes);
            _tile_stored(1, to + kTileColumns, out_bytes);
            _tile_stored(2, below, out_bytes);
            _tile_stored(3, below + kTileColumns, out_bytes);
            compiler_barrier();
        }
    _tile_release();
}

} // namespace

void multiply(const parts::Product& product) { multiply_parts<1, 1>(product); }
void multiply_two_parts(const parts::Product& product) { multiply_parts<2, 2>(product); }
void multiply_upper_parts(const parts::Product& product) { multiply_parts<2, 2, 1>(product); }

#else

void multiply(const parts::Product&) {}
void multiply_two_parts(const parts::Product&) {}
void multiply_upper_parts(const parts::Product&) {}

#endif

} // namespace flexc::cpu::amx
