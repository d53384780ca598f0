// Loads tiles of keys and values by one warp for itself: KeyValueLoader or, if keys are not in
// order, a loader whose lanes look up a row each, for all lanes and ahead of the copies.
#pragma once

#include "sm80/key_value_loader.cuh"

namespace sm80 {

template <typename KeyTile, typename ValueTile> class ScatteredLoaderOfWarp {
    static constexpr int kTileRows = KeyTile::kRows;
    static_assert(kTileRows <= 32);

  public:
    __device__ ScatteredLoaderOfWarp(const AttentionArguments& attention,
                                     const SequenceLength& length, int h_kv, int)
        : keys_(attention.k, h_kv), values_(attention.v, h_kv), scales_(attention, length, h_kv),
          request_(keys_of(attention, length)), key_count_(length.keys()) {}

    // Looks up the rows of the tile that is started next, without waiting for the result.
    template <typename Walk> __device__ void look_up(const Walk& at) {
        if (at.is_done()) return;
        own_ = request_.place(min(at.tile() * kTileRows + lane(), key_count_ - 1));
    }

    template <typename Shared, typename Walk>
    __device__ void start(const Shared& shared, const Walk& at, int) const {
        if (at.is_done()) return;
        const int first_key = at.tile() * kTileRows, rows_left = key_count_ - first_key;
        if (keys_.is_copied && values_.is_copied) {
            const Places<Rows<KeyTile>::kLanes> places(own_);
            keys_.copy(shared.keys(at.step()), places, rows_left);
            if constexpr (Rows<KeyTile>::kLanes == Rows<ValueTile>::kLanes)
                values_.copy(shared.values(at.step()), places, rows_left);
            else
                values_.copy(shared.values(at.step()), Places<Rows<ValueTile>::kLanes>(own_),
                             rows_left);
        } else {
            const auto place_of = [&](int row) { return request_.place(first_key + row); };
            keys_.load(shared.keys(at.step()), place_of, rows_left);
            values_.load(shared.values(at.step()), place_of, rows_left);
        }
        scales_.load(shared, at.step(), first_key, rows_left);
    }

  private:
    static __device__ int lane() { return static_cast<int>(threadIdx.x & 31); }

    // Places of the rows of which a lane copies pieces. kLanes lanes side by side share a row.
    template <int kLanes> struct Places {
        static constexpr int kRowStep = 32 / kLanes;
        static constexpr int kSteps = (kTileRows + kRowStep - 1) / kRowStep;
        KeyPlace at[kSteps];

        // own: the place of the row whose number is the lane.
        __device__ explicit Places(KeyPlace own) {
#pragma unroll
            for (int step = 0; step < kSteps; ++step)
                at[step] = {__shfl_sync(0xffffffffu, own.entry, row(step)),
                            __shfl_sync(0xffffffffu, own.row, row(step))};
        }
        static __device__ int row(int step) { return step * kRowStep + lane() / kLanes; }
    };

    // Copies keys or values of a head. Rows from rows_left on become zeros.
    template <typename T> class Rows {
        using E = typename T::Element;
        static constexpr int kBytes = kCopyBytes<E, T::kColumns>;
        static constexpr int kPieces =
            kBytes == 0 ? 1 : T::kColumns * static_cast<int>(sizeof(E)) / kBytes; // pieces of a row

      public:
        static constexpr int kLanes = kPieces % 32 == 0   ? 32
                                      : kPieces % 16 == 0 ? 16
                                      : kPieces % 8 == 0  ? 8
                                      : kPieces % 4 == 0  ? 4
                                      : kPieces % 2 == 0  ? 2
                                                          : 1;
        const bool is_copied; // in whole pieces; uniform

        __device__ Rows(const TensorArgument& tensor, int h_kv)
            : is_copied(kBytes != 0 && Plane<E>(tensor, 0, h_kv).aligned_to(kBytes) &&
                        is_near(tensor.stride_s) && is_near(tensor.stride_b) &&
                        bytes_of(tensor.stride_b) % (kBytes == 0 ? 1 : kBytes) == 0),
              rows_(tensor, 0, h_kv), stride_entry_(tensor.stride_b) {}

        __device__ void copy(T tile, const Places<kLanes>& places, int rows_left) const {
            constexpr int kPiece = kBytes == 0 ? 16 : kBytes;
            using Bytes = unsigned long long;
            const int byte = lane() % kLanes * kPiece;
            const Bytes first = reinterpret_cast<Bytes>(rows_.data) + byte;
            const auto of_entry = static_cast<unsigned>(bytes_of(stride_entry_)),
                       of_row = static_cast<unsigned>(bytes_of(rows_.stride_s));
            const unsigned to = tile.at(lane() / kLanes, 0) + byte;
#pragma unroll
            for (int step = 0; step < Places<kLanes>::kSteps; ++step) {
                const int row = places.row(step);
                if (T::kRows % places.kRowStep != 0 && row >= T::kRows) break;
                const KeyPlace at = places.at[step];
                const Bytes from =
                    multiply_add_wide(at.row, of_row, multiply_add_wide(at.entry, of_entry, first));
#pragma unroll
                for (int piece = 0; piece < kPieces; piece += kLanes)
                    copy_async<kPiece>(to + step * places.kRowStep * T::kPitch + piece * kPiece,
                                       reinterpret_cast<const void*>(from + piece * kPiece),
                                       row < rows_left);
            }
        }
        template <typename PlaceOf>
        __device__ void load(T tile, PlaceOf place_of, int rows_left) const {
            load_elements<32>(tile, rows_left, rows_.stride_d, [&](int row) {
                const KeyPlace at = place_of(row);
                return rows_.data + at.entry * stride_entry_ + at.row * rows_.stride_s;
            });
        }

      private:
        static __device__ long long bytes_of(long long stride) {
            return stride * static_cast<long long>(sizeof(E));
        }
        // Returns whether a stride fits in 32 bits, so that multiplying by it is one instruction.
        static __device__ bool is_near(long long stride) {
            return bytes_of(stride) >= 0 && bytes_of(stride) >> 32 == 0;
        }

        const Plane<E> rows_; // of entry 0
        const long long stride_entry_;
    };

    const Rows<KeyTile> keys_;
    const Rows<ValueTile> values_;
    const ScaleSource<32> scales_;
    const mod::Layouts::Keys request_;
    const int key_count_;
    KeyPlace own_ = {0, 0}; // place of the lane's row in the tile that is started next
};

template <typename KeyTile, typename ValueTile>
using LoaderOfWarp = Select<mod::Layouts::Keys::kAreInOrder, KeyValueLoader<32, KeyTile, ValueTile>,
                            ScatteredLoaderOfWarp<KeyTile, ValueTile>>;

} // namespace sm80
