// Keys and values of one request: where their rows are in memory, and copies of a tile of them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/backend/attention.h"
#include "cpu/backend/request_block.h"
#include "cpu/backend/skinny_amx.h"
#include "cpu/backend/tile_range.h"
#include "keys/all.h"

namespace flexc::cpu::requests {

class Keys {
  public:
    // launch: that of all requests.
    Keys(const Launch& launch, int request)
        : shape_(*launch.shape), in_(*launch.arguments), table_(launch.sequences->keys),
          sequence_(launch.sequences->of(request)), request_(request) {}

    // Calls visit(contiguous rows of the head, the first one's key) for each run of keys.
    template <typename Visit> void visit_runs(Range keys, int kv_head, const Visit& visit) const {
        with_layout([&](const auto& of_request) {
            for (std::int64_t key = keys.begin; key < keys.end;) {
                const KeyRun run =
                    of_request.run(static_cast<int>(key), static_cast<int>(keys.end - key));
                visit(Rows{run.entry, kv_head, run.row, run.count}, key);
                key += run.count;
            }
        });
    }
    // Calls visit(rows in memory, the first one's key) for each run of keys. ahead: how many rows
    // ahead to prefetch.
    template <typename Visit>
    void visit_memory(Range keys, int kv_head, const TensorArgument& tensor,
                      const ScaleArgument& scale, std::int64_t ahead, const Visit& visit) const {
        const auto place = [&](const Rows& rows) -> const void* {
            const std::int64_t element =
                rows.b * tensor.stride_b + rows.h * tensor.stride_h + rows.first * tensor.stride_s;
            return static_cast<const char*>(tensor.data) + element * bytes_of(shape_.kv_dtype);
        };
        visit_runs(keys, kv_head, [&](const Rows& rows, std::int64_t key) {
            // Short runs are skipped whole, as later ones are elsewhere.
            const std::int64_t near = rows.count < ahead ? round_up(ahead, rows.count) : ahead;
            const std::int64_t later = key + std::max(rows.count, near);
            MemoryRows memory{.data = place(rows),
                              .stride = tensor.stride_s,
                              .count = rows.count,
                              .ahead = near,
                              .next = place(rows),
                              .scale = scale.of(rows.b, static_cast<int>(rows.h))};
            if (later < sequence_.kv_len)
                visit_runs({later, later + 1}, kv_head,
                           [&](const Rows& next, std::int64_t) { memory.next = place(next); });
            visit(memory, key);
        });
    }
    // Returns where these rows of a tensor of 16 bits are. offsets: room for those of runs.
    RowList list_rows(Range keys, int kv_head, const TensorArgument& tensor,
                      std::int64_t* offsets) const;

    // Copy in f32 the keys, which are of one tile, and return their magnitude. Keys are transposed,
    // so that a tile of scores is a plain product: keys_out[dim][kKeyTile], values_out[keys][dim].
    Magnitude widen_keys(Range keys, int kv_head, float* keys_out) const;
    Magnitude widen_values(Range keys, int kv_head, float* values_out) const;

    // Sets rows[key % kKeyTile] to the row that a mod reads buffers of keys by, where the layout
    // needs more than arithmetic for that.
    void find_rows(Range keys, std::int64_t* rows) const;

  private:
    // Calls visit(the layout's access to the request's keys).
    template <typename Visit> void with_layout(const Visit& visit) const {
        with_key_layout(table_.layout, [&](auto layout) {
            visit(typename decltype(layout)::Keys(table_, sequence_, request_));
        });
    }
    // Calls load(rows, column in the tile, number of rows with padding of zeros) for each run.
    // Padding lets products begin and end at multiples of units.
    template <typename Load> Magnitude load_runs(Range keys, int kv_head, const Load& load) const {
        Magnitude all;
        visit_runs(keys, kv_head, [&](const Rows& rows, std::int64_t key) {
            const std::int64_t column = key % kKeyTile;
            const bool is_last = key + rows.count == keys.end;
            all &= load(rows, column,
                        is_last ? round_up(column + rows.count, parts::kTileUnit) - column
                                : rows.count);
        });
        return all;
    }

    const KernelShape& shape_;
    const AttentionArguments& in_;
    const KeyTable& table_;
    const Sequence& sequence_;
    int request_;
};

} // namespace flexc::cpu::requests
