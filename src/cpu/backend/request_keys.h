// Keys and values of one request: where their rows are in memory, and copies of a tile of them.
#pragma once

#include <cstdint>

#include "cpu/backend/attention.h"
#include "cpu/backend/flush_denormals.h"
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
    // Calls visit(rows in memory, index of the first one in `keys`) for each run of keys.
    template <typename Visit>
    void visit_memory(Range keys, int kv_head, const TensorArgument& tensor,
                      const ScaleArgument& scale, const Visit& visit) const {
        const FlushDenormals flush;
        const auto place = [&](const Rows& rows) {
            return rows.b * tensor.stride_b + rows.h * tensor.stride_h +
                   rows.first * tensor.stride_s;
        };
        MemoryRows memory{tensor.data, 0, tensor.stride_s, 0, 0};
        std::int64_t at = keys.begin;
        visit_runs(keys, kv_head, [&](const Rows& rows, std::int64_t key) {
            memory.next = place(rows);
            if (memory.count > 0) visit(memory, at - keys.begin);
            memory.first = memory.next;
            memory.count = rows.count;
            memory.scale = scale.of(rows.b, static_cast<int>(rows.h));
            at = key;
        });
        memory.next = memory.first + memory.count * memory.stride;
        visit(memory, at - keys.begin);
    }
    // Returns where these rows of a tensor of 16 bits are. offsets: room for those of runs.
    amx::RowList list_rows(Range keys, int kv_head, const TensorArgument& tensor,
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
            all &=
                load(rows, column,
                     is_last ? round_up(column + rows.count, amx::kTileUnit) - column : rows.count);
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
